-- Counts the messages of streams.
-- KEYS: meta, the streams.
-- Returns { span, messages }.
--@include queue
local facts = redis.pcall('HMGET', meta, 'mark', 'span')
local problem = refuse(facts, true)
if problem then
  return problem
end
local span, total = span_of(facts[2]), 0
if unbelieved then
  return unbelieved
end
for i = 2, #KEYS do
  local length = redis.pcall('XLEN', KEYS[i])
  if is_error(length) then
    return refusal(length, KEYS[i], 'does not hold a stream of a shuffle queue')
  end
  total = total + length
end
return { span, total }
