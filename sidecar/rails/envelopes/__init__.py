"""What is said on the messaging rail, as values: delivery messages and presence records, judged as they come and go.

Pure: text and already parsed subjects in, values out. ``schema`` is the one table of the shapes and prints
``envelope.schema.json``; ``message`` and ``presence`` hold the typed values; ``receive`` judges whole frames;
``coalesce`` shows several copies of one message once; ``artifacts`` names and verifies bytes that are kept elsewhere.
"""
