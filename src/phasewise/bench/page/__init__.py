"""The pieces of the HTML report; report_page.py puts them together."""
