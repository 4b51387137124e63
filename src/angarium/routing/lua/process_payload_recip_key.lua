#!lua
-- Guarantee: appends the message to the list of its key, counts it for the one owner of the key and
-- notifies the owner, all or nothing. A stale owner loses its keys first.
-- Events: accepted, assigned, reassigned, removed
-- Repeats: no, a second call queues the message again
-- include: transition
-- include: layout_native
-- include: assignment
-- include: append_message
-- include: process_payload
