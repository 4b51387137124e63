#!lua
-- Guarantee: a reply that waits for a sender of this process is offered once; if the one it was
-- offered to is not heard of again, it is due when `pending_ttl` is over.
-- KEYS: 3–6 as in the include
-- ARGV: 4–11 as in the include, 12 most to pop
-- Returns: {MinMessageInfo, …}
-- Events: none, the taking of each is noted
-- Repeats: no, a second call pops others
-- include: transition
-- include: conversation
local popped, claim = {}, seconds(now_ms + pending_ttl)

local function pop(need)
  if #popped >= items then return end
  local found = redis.call('ZPOPMIN', KEYS[6] .. need, items - #popped)
  for number = 1, #found, 2 do
    popped[#popped + 1] = found[number]
    -- Never later than it is: a process of 0.1.0 may hold it by now, and that must not be shifted.
    redis.call('ZADD', KEYS[3], 'XX', 'LT', claim, found[number])
  end
  forget_need(need)
end

-- Of all needs of a kind, those that have waited longest for another one first.
local function pop_kind(kind)
  for _, need in ipairs(redis.call('ZRANGE', KEYS[6] .. kind, 0, items - 1)) do pop(need) end
end

if redis.call('EXISTS', KEYS[6] .. 'n', KEYS[6] .. 'o') == 0 then return popped end
if ARGV[11] == '' then
  pop_kind('n')
  pop_kind('o')
  return popped
end
for _, name in ipairs(cjson.decode(ARGV[11])) do
  pop('n:' .. name)
  pop('o:' .. name)
end
if can_send('o:') then pop_kind('o') end
return popped
