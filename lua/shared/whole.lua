--@library
-- whole(): a number as the text of an integer, which tostring() would round and give an exponent.
local function whole(number)
  return string.format('%.0f', number)
end
