--@library
-- Receipts of reads. A reader names a key of its own, one for each of its reads that are under way, and gives
-- each read a number that grows. What a read was granted is noted in its key: `number place place ...`, for a
-- shuffle queue `stream:entry id:deliveries`. So the same read, when it is sent again, is answered by the same
-- messages; a read with a lower number is an old one, which nobody waits for. Without places a receipt says
-- that the read was granted nothing, or has given everything back. The server removes a receipt.
--@include clock

-- The number of a receipt, and its places, of the text of its key. Returns nil for any other text.
local function receipt_of(text)
  if type(text) ~= 'string' then
    return nil
  end
  local number, places = string.match(text, '^(%d+)(.*)$')
  return #(number or '') <= 15 and tonumber(number), places
end

-- Writes a receipt. Returns what its key had, false if nothing, or an error reply: a full server refuses this
-- as a first write.
local function write_receipt(key, text)
  return redis.pcall('SET', key, text, 'PX', UNDER_WAY_MS, 'GET')
end

-- The places of a receipt, each as { stream's number, entry's id, deliveries }.
local function granted_by(places)
  local found = {}
  for number, id, deliveries in string.gmatch(places, '(%-?%d+):(%d+%-%d+):(%d+)') do
    found[#found + 1] = { number, id, deliveries }
  end
  return found
end
