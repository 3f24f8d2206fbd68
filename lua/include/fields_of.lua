-- fields_of(): the fields of a list field, value, field, value, ...
local function fields_of(list)
  local fields = {}
  for i = 1, #list, 2 do
    fields[(i + 1) / 2] = list[i]
  end
  return fields
end
