-- How often a message was taken and released: "takes released due consumer", as texts.
-- read_history(text): takes, released, due and consumer, or nil for a message that nobody has taken.
local function read_history(text)
  if text then
    return string.match(text, '^(%d+) (%d+) (%d+) (.*)$')
  end
end

-- write_history(): what read_history() reads.
local function write_history(takes, released, due, consumer)
  return string.format('%.0f %.0f %.0f %s', takes, released, due, consumer)
end
