#!lua
-- Guarantee: moves keys without messages from live instances that own more than their share to those
-- that own less. A key with messages stays, so its order is not at risk.
-- Events: reassigned
-- Repeats: safe
-- include: transition
-- include: attempts
-- include: layout_native
-- include: layout_native_rest
-- include: layout_acapy
-- include: assignment
local sizes, live, moved = {}, {}, 0
for _, uid in ipairs(layout.uids()) do
  if layout.live(uid) then
    live[#live + 1] = uid
    sizes[uid] = layout.size(uid)
  end
end

local function smallest()
  local found
  for _, uid in ipairs(live) do
    if not found or sizes[uid] < sizes[found] then found = uid end
  end
  return found
end

local function keys_of(uid)
  if layout_name == 'acapy' then return layout.some_keys(uid) end
  -- Enough to find some without messages, within what one call may read.
  local number = layout.number(uid)
  local mail = redis.call('ZCOUNT', mail_key, exactly(band(number, READY)),
    below(band(number + 1, READY)))
  local keys_max = math.min(moves_max + mail, 10 * moves_max)
  return redis.call('ZRANGEBYSCORE', keys_key, number, number, 'LIMIT', 0, keys_max)
end

for _, from in ipairs(live) do
  local keys = moved < moves_max and sizes[from] > sizes[smallest()] + 1 and keys_of(from) or {}
  for _, key in ipairs(keys) do
    local to = smallest()
    if sizes[from] <= sizes[to] + 1 or moved >= moves_max then break end
    if count_of(from, key) == 0 then
      move_key(key, from, to, 'rebalance')
      sizes[from], sizes[to], moved = sizes[from] - 1, sizes[to] + 1, moved + 1
    end
  end
end
write_changes()
return reply.rebalanced(moved, moved >= moves_max and 1 or 0)
