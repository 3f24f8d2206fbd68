--@library
-- Replies, and integers as Redis reads and writes them.

-- Whether redis.pcall() has returned an error reply.
local function is_error(reply)
  return type(reply) == 'table' and reply.err ~= nil
end

-- Whether a text is an integer as Redis reads one: 64 bits, no sign but a minus, no leading zero.
local function is_integer(text)
  local sign, digits = string.match(text, '^(-?)([1-9]%d*)$')
  if not digits then
    return text == '0'
  end
  local last = sign == '' and '9223372036854775807' or '9223372036854775808'
  return #digits < #last or (#digits == #last and digits <= last)
end

-- A number as the text of an integer, which tostring() would round and give an exponent.
local function whole(number)
  return string.format('%.0f', number)
end
