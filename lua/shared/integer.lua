--@library
-- is_integer(): integers as Redis reads them.

-- Whether a text is an integer as Redis reads one: 64 bits, no sign but a minus, no leading zero.
local function is_integer(text)
  local sign, digits = string.match(text, '^(-?)([1-9]%d*)$')
  if not digits then
    return text == '0'
  end
  local last = sign == '' and '9223372036854775807' or '9223372036854775808'
  return #digits < #last or (#digits == #last and digits <= last)
end
