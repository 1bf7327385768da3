"""`inkmill serve`: pages to text over HTTP, and a page for people; see app.py."""
