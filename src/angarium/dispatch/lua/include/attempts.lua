-- The attempts of a message: the number of deliveries, '@' and the holder if it renewed the
-- message, then a line for each failure. No record means one delivery without a failure: the
-- common case writes nothing.
local function read_attempts(value)
  if not value then return 1, '', '' end
  local deliveries, holder, reasons = string.match(value, '^(%d+)@?([^\n]*)(.*)$')
  return tonumber(deliveries) or 1, holder or '', reasons or ''
end

-- A worker has the message as long as its last delivery has no failure.
local function is_held(deliveries, reasons)
  return select(2, string.gsub(reasons, '\n', '')) < deliveries
end

-- Whether `consumer` has the message: by the number of the delivery, or, if the caller does not
-- know it (0), because the record names no other holder.
local function is_holder(value, consumer, delivery)
  local deliveries, holder, reasons = read_attempts(value)
  if not is_held(deliveries, reasons) then return false end
  if delivery > 0 then return delivery == deliveries end
  return holder == '' or holder == consumer
end

-- Lines beyond these lose their text: retries may be many.
local REASONS_MAX = 20

local function add_reason(reasons, reason)
  -- Only the newest failure keeps the traceback behind its reason (failures.py).
  reasons = string.gsub(reasons, '\226\144\164[^\n]*', '')
  -- One line for each failure, so that the lines can be counted.
  reasons = reasons .. '\n' .. string.gsub(reason, '%s+', ' ')
  local _, texts = string.gsub(reasons, '\n[^\n]+', '')
  if texts > REASONS_MAX then reasons = string.gsub(reasons, '\n[^\n]+', '\n', 1) end
  return reasons
end
