-- Reads the layout of a namespace, and writes it down if there is none yet.
--   KEYS[1] the layout, a hash
--   ARGV[1..] fields and values of a new layout; none if it is only to be read
-- Returns field, value, ... of the layout that holds. Errors: WSLAYOUT for a foreign key.
--@include layout
return open_layout(KEYS[1], ARGV)
