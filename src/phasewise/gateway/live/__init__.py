"""The gateway's live view: computed once a second, and only while somebody looks."""
