"""The study report: several runs compared on one page, and beside the published study on its own basis."""
