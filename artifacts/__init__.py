"""The bundle format and the offline pipeline that makes bundles. Nothing here knows about HTTP."""
