#!lua flags=no-writes
-- Guarantee: returns dead letters in their order, the first whatever its size, the others within
-- bytes_max. Letters that were removed since the last page move the next page back, not forward.
-- Events: none
-- Repeats: safe
-- include: transition
local CHUNK = 20

-- The place after the letter with this id; it can only have moved towards the beginning.
local function place_after(id, first)
  if id == '' then return first end
  for last = math.min(first - 1, redis.call('LLEN', dead_key) - 1), 0, -CHUNK do
    local chunk_start = math.max(0, last - CHUNK + 1)
    local entries = redis.call('LRANGE', dead_key, chunk_start, last)
    for i = #entries, 1, -1 do
      if string.find(entries[i], '"id":"' .. id .. '"', 1, true) then return chunk_start + i end
    end
    if first - chunk_start > looked_back_max then break end
  end
  return math.min(first, redis.call('LLEN', dead_key))
end

local at, found, bytes = place_after(after_id, start), {}, 0
local first = at
while #found < letters_max do
  local entries = redis.call('LRANGE', dead_key, at, at + math.min(CHUNK, letters_max - #found) - 1)
  for _, entry in ipairs(entries) do
    bytes = bytes + #entry
    if #found > 0 and bytes > bytes_max then return reply.page(first, found) end
    found[#found + 1] = entry
    at = at + 1
  end
  if #entries == 0 then break end
end
return reply.page(first, found)
