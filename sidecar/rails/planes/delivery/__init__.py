"""The delivery plane of a space: memberships, copies, anycast records, reads for members (C7, C8, C8.1)."""
