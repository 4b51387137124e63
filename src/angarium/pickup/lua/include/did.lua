-- Callers that know a recipient only: the index of queues by DID, and the sessions by DID. `dids` has
-- `tenant:did queue` for each queue whose messages name the DID; `did_sessions` has the gateway of
-- each DID with a live session, in every partition.

-- Further DIDs of a queue are not in the index: it is bounded by the number of queues.
local QUEUE_DIDS_MAX = 64

local function tenant_of(queue) return string.match(queue, '^[^:]*:') or '' end

-- `known`: the DIDs of the queue that are in the index already, or false.
local function index_dids(dids_key, meta_key, queue, dids, known)
  local listed = ' ' .. (known or '') .. ' '
  local _, count = string.gsub(listed, '%S+', '')
  local tenant, new = tenant_of(queue), false
  for did in string.gmatch(dids, '%S+') do
    if count < QUEUE_DIDS_MAX and not string.find(listed, ' ' .. did .. ' ', 1, true) then
      if tenant .. did ~= queue then call('ZADD', dids_key, 0, tenant .. did .. ' ' .. queue) end
      listed, count, new = listed .. did .. ' ', count + 1, true
    end
  end
  if new then call('HSET', meta_key, 'dids', string.match(listed, '^%s*(.-)%s*$')) end
end

-- The gateway with a live session of one of the DIDs, or nil.
local function did_gateway(did_sessions_key, gateways_key, queue, dids, known)
  local tenant = tenant_of(queue)
  for did in string.gmatch(dids, '%S+') do
    local gateway = tenant .. did ~= queue and call('HGET', did_sessions_key, tenant .. did)
    if gateway and alive(gateways_key, gateway, known) then return gateway end
  end
  return nil
end

-- Hints of a batch, by gateway and kind; each gateway gets at most one message of a kind.
local function hint_of(hints, gateway, kind, line)
  hints[gateway] = hints[gateway] or {}
  hints[gateway][kind] = (hints[gateway][kind] or kind) .. '\n' .. line
end

local function hint_of_mail(hints, gateway, queue) hint_of(hints, gateway, 'mail', queue) end

local function hint_of_did(hints, gateway, queue, dids)
  hint_of(hints, gateway, 'did', queue .. ' ' .. dids)
end

local function publish_hints(hints)
  for gateway, kinds in pairs(hints) do
    for _, hint in pairs(kinds) do call('PUBLISH', hint_channel .. gateway, hint) end
  end
end
