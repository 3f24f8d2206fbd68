-- Parts of ARGV as lists.

-- The arguments from index first on, as a list.
local function arguments(first)
  local list = {}
  for i = first, #ARGV do
    list[#list + 1] = ARGV[i]
  end
  return list
end

-- The arguments behind FIELDS and their number.
local function fields_argument(first)
  for i = first, #ARGV do
    if string.upper(ARGV[i]) == 'FIELDS' then
      return arguments(i + 2)
    end
  end
  return {}
end
