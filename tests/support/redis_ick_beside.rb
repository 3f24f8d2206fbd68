# Makes random calls twice: of the gem's own Lua on one Ick, and of workstealing's scripts on another.
#
# Arguments: a seed and a number of calls. Prints each difference of answers or of what is kept, up to
# three, and a last line that counts. The environment is the shim's, and REDIS_URL.

require 'json'
require 'redis'
require 'redis/ick'

GEM = Redis::Ick.dup # taken before the shim is put in front of the class
require_relative 'redis_ick_shim'

class Beside
  NAMES = { gem: 'beside-gem', ours: 'beside-ours' }.freeze
  ODD = [-Float::INFINITY, Float::INFINITY, 1_700_000_000.123456, 0.1 + 0.2].freeze

  attr_reader :differences

  def initialize(redis, seed)
    @redis = redis
    @random = Random.new(seed)
    @sides = { gem: GEM.new(redis), ours: Redis::Ick.new(redis) }
    @differences = []
  end

  def step
    spoil if @random.rand(60).zero?
    call, args, options = draw
    answers = @sides.map { |side, ick| answer(ick, call, [NAMES[side], *args], options) }
    kept = NAMES.values.map { |key| contents(key) }
    return if answers.uniq.size == 1 && kept.uniq.size == 1

    shown = args.size > 20 ? "#{args.size} arguments" : args.inspect
    @differences << "#{call} #{shown} #{options}: #{answers.inspect} #{kept.inspect}"[0, 2000]
    start_anew
  end

  def start_anew
    NAMES.each_value { |key| @redis.keys("#{key}*").each { |one| @redis.del(one) } }
  end

  private

  def draw
    case @random.rand(40)
    when 0..13 then [:ickadd, Array.new(@random.rand(5)) { [score, member] }.flatten, {}]
    when 14..20 then [:ickreserve, [@random.rand(6)], backwash]
    when 21..26 then [:ickcommit, Array.new(@random.rand(4)) { member }, {}]
    when 27..34 then [:ickexchange, [@random.rand(6), *Array.new(@random.rand(4)) { member }], backwash]
    when 35..37 then [:ickstats, [], {}]
    when 38 then many
    else [:ickdel, [], {}]
    end
  end

  # More than one of our scripts takes at once.
  def many
    names = Array.new(1000 + @random.rand(1500)) { |number| "many-#{number}" }
    case @random.rand(3)
    when 0 then [:ickadd, names.flat_map { |name| [score, name] }, {}]
    when 1 then [:ickcommit, names, {}]
    else [:ickexchange, [names.size, *names], backwash]
    end
  end

  def member
    ['', 'ü', "\xff\x00\n", *'a'..'i'][@random.rand(12)]
  end

  def score
    case @random.rand(20)
    when 0 then ODD[@random.rand(ODD.size)]
    when 1..9 then @random.rand(20)
    when 10..14 then @random.rand(200) / 8.0
    else -@random.rand(50) / 10.0
    end
  end

  def backwash
    { backwash: @random.rand(3).zero? }
  end

  # A foreign value, a foreign version, or a lost key at the same place on both sides, or a clean start.
  def spoil
    return start_anew if @random.rand(2).zero?

    part = ['', '/ick/{%s}/pset', '/ick/{%s}/cset'][@random.rand(3)]
    how = @random.rand(3)
    NAMES.each_value do |key|
      at = key + format(part, key)
      @redis.del(at)
      @redis.set(at, 'ick.v9') if how == 1
      @redis.rpush(at, 'x') if how == 2
    end
  end

  def answer(ick, call, args, options)
    found = ick.send(call, *args, **options)
    call == :ickstats && found ? described(found) : found
  rescue Redis::CommandError
    :refused
  end

  # The gem writes the lowest and highest scores of its stats with 14 digits.
  def described(found)
    found.reject { |name, _| name.end_with?('key') }.to_h do |name, value|
      [name, value.is_a?(Float) ? format('%.14g', value) : value]
    end
  end

  def contents(key)
    [key, "#{key}/ick/{#{key}}/pset", "#{key}/ick/{#{key}}/cset"].map do |at|
      case @redis.type(at)
      when 'string' then @redis.get(at)
      when 'zset' then @redis.zrange(at, 0, -1, withscores: true)
      else @redis.type(at)
      end
    end
  end
end

beside = Beside.new(Redis.new(url: ENV.fetch('REDIS_URL')), Integer(ARGV[0]))
beside.start_anew
calls = Integer(ARGV[1])
made = 0
while made < calls && beside.differences.size < 3
  beside.step
  made += 1
end
puts beside.differences
puts "calls: #{made}, differences: #{beside.differences.size}"
