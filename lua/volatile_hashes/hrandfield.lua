-- HRANDFIELD hash [count [WITHVALUES]], for a volatile hash: uniform over the live fields.
--   KEYS[1] hash
--   KEYS[2] deadlines
--   ARGV[1..] as the command takes them
-- Returns as the command does (RESP2 shape). Complexity: the command's own while nothing has expired, else
-- O(fields).
--@include hash
local hash, deadlines = KEYS[1], KEYS[2]
local past, count = past_fields(deadlines, now())
-- Amounts that cannot be meant are the server's to refuse.
local wanted = ARGV[1] and tonumber(ARGV[1])
if count == 0 or (ARGV[1] and not (wanted and math.abs(wanted) < 2 ^ 53 and wanted % 1 == 0)) then
  return redis.pcall('HRANDFIELD', hash, unpack(ARGV))
end
local list = redis.pcall('HGETALL', hash)
if list.err then
  return list
end
local live = {}
for i = 1, #list, 2 do
  if not past[list[i]] then
    live[#live + 1] = { list[i], list[i + 1] }
  end
end
-- The server seeds every script alike; the microsecond of the call does not repeat.
local clock = redis.call('TIME')
math.randomseed((clock[1] % 100000) * 1000000 + clock[2])
if #ARGV == 0 then
  return #live > 0 and live[math.random(#live)][1]
end
local with_values, chosen = #ARGV > 1, {}
local function choose(pair)
  chosen[#chosen + 1] = pair[1]
  if with_values then
    chosen[#chosen + 1] = pair[2]
  end
end
if #live == 0 then
  return chosen
end
if wanted < 0 then
  for _ = 1, -wanted do
    choose(live[math.random(#live)])
  end
else
  for i = 1, math.min(wanted, #live) do
    local j = math.random(i, #live)
    live[i], live[j] = live[j], live[i]
    choose(live[i])
  end
end
return chosen
