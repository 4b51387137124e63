#!lua
-- Guarantee: mail that nobody owns is given out, stale instances lose their keys, and silent ones
-- without keys are removed; each only as the rules allow, and only so many in one call.
-- KEYS: 3 counts, 4 iterator, 5 keys by instance, 6 owners, 7 last access, 8 mail
-- ARGV: 4-8 as in the book
-- Returns: {'swept', keys assigned, keys moved, 1 when there is more to do, instances}
-- Events: assigned, reassigned, removed
-- Repeats: safe
-- include: transition
-- include: native
-- include: acapy
-- include: keys
local assigned, moved, more = 0, 0, 0
local kept = redis.call('ZRANGEBYSCORE', mail_key, 0, below(BAND), 'LIMIT', 0, moves_max)
for _, key in ipairs(kept) do
  -- One that has an owner already is a leftover of a layout's other writer.
  if owner_of(key) then
    redis.call('ZREM', mail_key, key)
  elseif assign_recip_key_to_new_uid(key) then
    assigned = assigned + 1
  else
    break
  end
end
if assigned == moves_max then more = 1 end
for _, uid in ipairs(book.uids()) do
  -- Heard of in the future: the clock was set back since. Those that live say so again soon.
  if (book.silent_ms(uid) or 0) < 0 then book.touch(uid) end
  if moved >= moves_max then
    more = 1
    break
  elseif is_stale(uid) then
    local count, left = reassign_uid(uid)
    moved = moved + count
    if left then more = 1 end
  elseif ARGV[4] == 'native' and is_silent(uid) and book.size(uid) == 0 then
    book.remove(uid)
    note('removed', uid, { o = uid })
  end
end
close_book()
return { 'swept', assigned, moved, more, #book.uids() }
