"""Plain data to text: tables, live view, summaries. Pure except for the terminal itself."""
