"""Jobs by id, by an app: asked, listed, submitted, cancelled, retried.

What a person or another program does to single jobs. The commands and the HTTP interface do it by this room; reading
alone is `observe`, and how a change comes about in Redis is `server`.
Read `jobs` first.
"""
