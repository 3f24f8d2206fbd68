-- Describes accounts: one, or some.
--   KEYS[1..] the keys of the queue, in the order that queue.lua names
--   ARGV[1] account, '' for some
--   ARGV[2] where to go on
--   ARGV[3] how many
-- Returns { server's time in ms, virtual time, how many are ready, where to go on next, accounts: { account, tag, estimate,
-- waiting, in flight, delayed, place, moment from which it may be served in ms or '', rule, weight, cap, period, burst,
-- most, 1 if paused, the rule that says so, turns before its own or -1, when the oldest that waits was written in ms or 0 }, ... }.
--@include message
--@include bounded
local found = redis.pcall('HMGET', KEYS[META], 'mark', 'now', 'delivery', 'rules', 'look')
local problem = refuse_facts(KEYS[META], found, true)
if problem then
  return problem
end
local at = now()
local facts = facts_of(KEYS, found, 1, at)
local cursor, names = '0', { ARGV[1] }
if ARGV[1] == '' then
  local page
  cursor, page = some_of(KEYS[ACCOUNTS], ARGV[2], tonumber(ARGV[3]))
  names = {}
  for i = 1, #page, 2 do
    names[#names + 1] = page[i]
  end
end
local described = { at, whole(facts.now), redis.call('ZCARD', KEYS[READY]), cursor }
for _, account in ipairs(names) do
  local a = account_of(KEYS, account)
  if unbelieved then
    return unbelieved
  end
  if a then
    local s = settings_of(KEYS, facts, account, a)
    local id
    if a.first < a.last then
      id = redis.call('HGET', KEYS[BACK], a.epoch .. ':' .. whole(a.first))
    elseif a.head < a.tail then
      id = a.epoch .. '-0-' .. whole(a.head)
    elseif a.head1 < a.tail1 then
      id = a.epoch .. '-1-' .. whole(a.head1)
    end
    local text = id and redis.call('HGET', KEYS[MESSAGES], id)
    local m = text and parts_of_message(text)
    described[#described + 1] = {
      account, whole(a.tag), whole(a.estimate > 0 and a.estimate or s.estimate or FIRST_ESTIMATE), whole(a.waiting),
      whole(a.flying), whole(a.delayed), a.place, redis.call('ZSCORE', KEYS[LIMITED], account) or '', s.rule or '',
      whole(s.weight), s.cap and whole(s.cap) or '', s.period and whole(s.period) or '', whole(s.burst),
      s.most and whole(s.most) or '', s.is_paused and 1 or 0, s.paused_by or '', redis.call('ZRANK', KEYS[READY], account) or -1,
      m and whole(m.written) or '0',
    }
  end
end
return described
