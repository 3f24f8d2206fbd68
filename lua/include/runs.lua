-- in_runs(): commands on more fields than one call of unpack() can pass.

-- Calls visit(first, last) for runs of at most 4,000 indexes, because unpack() has its limits.
local function in_runs(first, last, visit)
  while first <= last do
    visit(first, math.min(first + 3999, last))
    first = first + 4000
  end
end
