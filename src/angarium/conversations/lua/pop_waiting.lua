#!lua
-- Guarantee: a reply that waits for a sender of this process goes to one caller. If the caller does
-- not take it, it is due again after `pending_ttl`.
-- KEYS: 3–6 as in the include
-- ARGV: 4–11 as in the include, 12 most to pop
-- Returns: {MinMessageInfo, …}
-- Events: none; taking a reply writes its event
-- Repeats: no, a second call pops other replies
-- include: transition
-- include: conversation
local popped, claim = {}, seconds(now_ms + pending_ttl)

local function pop(required)
  if #popped >= items then return end
  local found = redis.call('ZPOPMIN', KEYS[6] .. required, items - #popped)
  for number = 1, #found, 2 do
    popped[#popped + 1] = found[number]
    -- Only earlier: a process of 0.1.0 may hold the reply, and its claim must not be extended.
    redis.call('ZADD', KEYS[3], 'XX', 'LT', claim, found[number])
  end
  drop_empty_wait(required)
end

-- All required senders of a kind; those whose last reply came longest ago first.
local function pop_kind(kind)
  for _, required in ipairs(redis.call('ZRANGE', KEYS[6] .. kind, 0, items - 1)) do pop(required) end
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
