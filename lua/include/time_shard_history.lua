-- How often a message was taken and released: "takes released due extended consumer", as texts;
-- extended: until when its last lease was extended, in ms, or 0.
-- read_history(text): takes, released, due, consumer and extended, or nil for a message that nobody
-- has taken.
local function read_history(text)
  if text then
    local takes, released, due, extended, consumer =
      string.match(text, '^(%d+) (%d+) (%d+) (%d+) (.*)$')
    return takes, released, due, consumer, extended
  end
end

-- write_history(): what read_history() reads. Without `extended` whatever extension there was ends.
local function write_history(takes, released, due, consumer, extended)
  return string.format('%.0f %.0f %.0f %.0f %s', takes, released, due, extended or 0, consumer)
end
