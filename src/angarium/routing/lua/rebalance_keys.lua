#!lua
-- Guarantee: keys without mail go from live instances that own more than their share to those that
-- own less; a key with mail stays, so no order is at risk.
-- KEYS: 3 counts, 4 iterator, 5 keys by instance, 6 owners, 7 last access, 8 mail
-- ARGV: 4-8 as in the book
-- Returns: {'rebalanced', keys moved, 1 when another call may move more}
-- Events: reassigned
-- Repeats: safe
-- include: transition
-- include: native
-- include: acapy
-- include: keys
local sizes, live, moved = {}, {}, 0
for _, uid in ipairs(book.uids()) do
  if book.live(uid) then
    live[#live + 1] = uid
    sizes[uid] = book.size(uid)
  end
end

local function poorest()
  local found
  for _, uid in ipairs(live) do
    if not found or sizes[uid] < sizes[found] then found = uid end
  end
  return found
end

local function keys_of(uid)
  if ARGV[4] == 'acapy' then return book.some_keys(uid) end
  -- Enough to find some without mail among them, within what one call may look at.
  local number = book.number(uid)
  local mail = redis.call('ZCOUNT', mail_key, exactly(band(number, READY)),
    below(band(number + 1, READY)))
  local keys_max = math.min(moves_max + mail, 10 * moves_max)
  return redis.call('ZRANGEBYSCORE', keys_key, number, number, 'LIMIT', 0, keys_max)
end

for _, rich in ipairs(live) do
  local keys = moved < moves_max and sizes[rich] > sizes[poorest()] + 1 and keys_of(rich) or {}
  for _, key in ipairs(keys) do
    local poor = poorest()
    if sizes[rich] <= sizes[poor] + 1 or moved >= moves_max then break end
    if count_of(rich, key) == 0 then
      move_key(key, rich, poor, 'rebalance')
      sizes[rich], sizes[poor], moved = sizes[rich] - 1, sizes[poor] + 1, moved + 1
    end
  end
end
close_book()
return { 'rebalanced', moved, moved >= moves_max and 1 or 0 }
