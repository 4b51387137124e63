#!lua
-- Guarantee: members of the index by DID whose queue has ended are removed, and so are the sessions
-- by DID of gateways that are gone. One call looks at members_max members behind `after`, and at as
-- many sessions, chosen at random. The reply has the last member, or '' at the end of the index.
-- Events: none
-- Repeats: safe
-- include: transition
local sessions = redis.call('HRANDFIELD', did_sessions_key, members_max, 'WITHVALUES')
for i = 1, #sessions, 2 do
  if not redis.call('ZSCORE', gateways_key, sessions[i + 1]) then
    redis.call('HDEL', did_sessions_key, sessions[i])
  end
end
local first = after == '' and '-' or '(' .. after
local members = redis.call('ZRANGEBYLEX', dids_key, first, '+', 'LIMIT', 0, members_max)
for _, member in ipairs(members) do
  if redis.call('EXISTS', meta_stem .. string.match(member, ' (.*)$')) == 0 then
    redis.call('ZREM', dids_key, member)
  end
end
return reply.swept(#members == members_max and members[#members] or '')
