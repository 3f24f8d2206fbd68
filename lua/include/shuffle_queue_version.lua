-- What `mark` of a queue's meta says.
local QUEUE_VERSION = '1'
