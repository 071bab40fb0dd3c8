"""The study report: several runs compared on one page, with each other and with the paper."""
