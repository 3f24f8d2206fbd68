-- Shows the messages of an account that are served next, in that order; those that were given back first.
--   KEYS[1..] the keys of the queue, in the order that queue.lua names
--   ARGV[1] account
--   ARGV[2] how many at most
-- Returns { server's time in ms, { id, attempts, text }, ... }.
--@include message
local problem = refuse_facts(KEYS[META], redis.pcall('HMGET', KEYS[META], 'mark'), true)
if problem then
  return problem
end
local most = tonumber(ARGV[2])
local a = account_of(KEYS, ARGV[1])
local shown = { now() }
if unbelieved or not a then
  return unbelieved or shown
end
-- Passes over so many holes at most.
local looks = most + 64
local function show(id)
  looks = looks - 1
  local text = id and redis.call('HGET', KEYS[MESSAGES], id)
  local d = text and delivery_of(KEYS, id)
  if text and not (d and d.is_flying) then
    shown[#shown + 1] = { id, d and d.attempts or 0, text }
  end
end
local function show_from(first, last, id_of)
  while first < last and #shown <= most and looks > 0 do
    show(id_of(whole(first)))
    first = first + 1
  end
end
show_from(a.first, a.last, function(n)
  return redis.call('HGET', KEYS[BACK], a.epoch .. ':' .. n)
end)
show_from(a.head1, a.tail1, function(n)
  return a.epoch .. '-1-' .. n
end)
show_from(a.head, a.tail, function(n)
  return a.epoch .. '-0-' .. n
end)
return shown
