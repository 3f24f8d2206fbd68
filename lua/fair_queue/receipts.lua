--@library
-- Receipts of reads: fields of a fair queue's meta, so that a read writes one with the facts that it writes anyway. A
-- reader has a field of its own, `read:` and a nonce, for each of its reads that are under way, and gives each read a
-- number that grows: `number tMS dDONE id:delivery ...`, with the moment in ms and how many messages the read ended. So
-- the same read, when it is sent again, is answered by the same messages; a read with a lower number is an old one,
-- which nobody waits for. The reaper deletes the fields of readers that are gone.

-- The number of a receipt's read; nil for a text that is none.
local function number_of_receipt(text)
  return text and tonumber(string.match(text, '^(%d%d?%d?%d?%d?%d?%d?%d?%d?%d?%d?%d?%d?%d?%d?) '))
end

-- The deliveries that a receipt names: an iterator of ids and numbers.
local function granted_by(text)
  return string.gmatch(text, ' (%w+%-%d%-%d+):(%d+)')
end

-- How many messages a receipt's read ended.
local function done_by(text)
  return tonumber(string.match(text, ' d(%d+)') or 0)
end

-- When a receipt was written, in ms; nil for a text that is none.
local function moment_of_receipt(text)
  return tonumber(string.match(text, '^%d+ t(%d+) '))
end

-- A receipt. served: messages as { id, delivery, ... }.
local function receipt_for(number, at, done, served)
  local text = number .. ' t' .. at .. ' d' .. done
  for i = 1, #served do
    text = text .. ' ' .. served[i][1] .. ':' .. served[i][2]
  end
  return text
end
