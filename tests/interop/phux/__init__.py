"""A client of `phux-coordinator/1` written from the specification alone; see README.md beside this package."""
