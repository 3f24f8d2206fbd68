-- HSCAN hash cursor [MATCH pattern] [COUNT n] [NOVALUES], for a volatile hash: live fields only.
--   KEYS[1] hash
--   KEYS[2] deadlines
--   ARGV[1..] as the command takes them; NOVALUES works on every server
-- Returns the next cursor and field, value, ... (fields alone with NOVALUES).
--@include hash
local hash, deadlines = KEYS[1], KEYS[2]
local options, no_values = {}, false
for i = 1, #ARGV do
  -- A pattern may be the word itself.
  if i > 1 and string.upper(ARGV[i]) == 'NOVALUES' and string.upper(ARGV[i - 1]) ~= 'MATCH' then
    no_values = true
  else
    options[#options + 1] = ARGV[i]
  end
end
local reply = redis.pcall('HSCAN', hash, unpack(options))
if reply.err then
  -- A missing key is found out before a wrong option is, and garbage alone is a missing key.
  if redis.call('TYPE', hash).ok == 'hash' and not has_live(hash, deadlines) and tonumber(ARGV[1]) then
    return { '0', {} }
  end
  return reply
end
local list, fields, live = reply[2], {}, {}
for i = 1, #list, 2 do
  fields[#fields + 1] = list[i]
end
local at, found = now(), deadlines_of(deadlines, fields)
for i, field in ipairs(fields) do
  if not is_past(found[i], at) then
    live[#live + 1] = field
    if not no_values then
      live[#live + 1] = list[2 * i]
    end
  end
end
return { reply[1], live }
