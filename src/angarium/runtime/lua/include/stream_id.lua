-- Order of stream entry ids: «ms-sequence», compared as two numbers.
local function id_parts(id)
  local ms, sequence = string.match(id, '^(%d+)-?(%d*)$')
  return tonumber(ms), tonumber(sequence) or 0
end

local function id_before(a, b)
  local a_ms, a_sequence = id_parts(a)
  local b_ms, b_sequence = id_parts(b)
  if a_ms ~= b_ms then return a_ms < b_ms end
  return a_sequence < b_sequence
end
