-- parts_of(): what is kept of a message that was set aside: attempts, the times in ms of its last delivery and of its end,
-- then its fields and values; each stands behind its length. Nothing for what was not written so.
local function parts_of(kept)
  local parts, at = {}, 1
  while at <= #kept do
    local _, last, size = string.find(kept, '^(%d+):', at)
    if not last or string.sub(kept, last + size + 1, last + size + 1) ~= ',' then
      return nil
    end
    parts[#parts + 1] = string.sub(kept, last + 1, last + size)
    at = last + size + 2
  end
  return #parts >= 3 and #parts % 2 == 1 and parts or nil
end
