"""Where, when and in which form groups are computed: what is searched, and how a schedule becomes commands."""
