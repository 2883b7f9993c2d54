package dev.chagres.attention;

import static dev.chagres.attention.HostRegions.INT;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.bindings.CaptureException;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * For layers: what one of several ranks computes of attention over packed sequences whose tokens, and so keys, are cut into chunks: its own
 * tokens as sequences, and a block for each chunk of keys that one of its chunks of queries sees.
 *
 * <p>A sequence that goes on from one chunk into another one is the only one that has queries in one and keys in the other, so a block
 * of two chunks is one stretch of queries and one of keys. The block of a chunk with itself has all sequences in it.
 *
 * <p>The object is used again for each micro-batch, and then makes no garbage.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: TE's {@code AttnFuncWithCPAndKVP2P}.
 */
public final class RingSequences implements AutoCloseable {
    /** Of each sequence of a block. */
    private static final int NUMBERS = 3;

    /** How chunks of queries see chunks of keys. */
    public enum Order {
        /** Every key of a sequence. */
        ALL,
        /** Keys of the query's own chunk by the mask, of chunks before it all. */
        CAUSAL
    }

    /**
     * Queries of one chunk and keys of one, of the same sequences.
     *
     * <p>Threading: the device's thread.
     */
    public static final class Block {
        private final CuSeqlens queryOffsets = new CuSeqlens();
        private final CuSeqlens keyOffsets = new CuSeqlens();
        private @Nullable Sequences sequences;
        /** INT32 [3, B]: of each sequence its number, and those of its first query and first key within it. */
        private @Nullable Tensor numbers;

        private int index;
        private int queryChunk;
        private int keyChunk;
        private long firstQuery;
        private long firstKey;

        private Block() {}

        /** Returns the sequences, packed; those of the keys are {@link Sequences#keys()}. */
        public Sequences sequences() {
            return Checks.given("sequences", sequences);
        }

        /** Returns the number of each sequence among those of all ranks, INT32 [B]. */
        public Tensor sequenceNumbers(Scope views) {
            return numbers(0, views);
        }

        /** Returns the number within its whole sequence of each sequence's first query, INT32 [B]. */
        public Tensor firstQueries(Scope views) {
            return numbers(1, views);
        }

        /** Returns the number within its whole sequence of each sequence's first key, INT32 [B]. */
        public Tensor firstKeys(Scope views) {
            return numbers(2, views);
        }

        private Tensor numbers(int row, Scope views) {
            Tensor all = Checks.given("numbers", numbers);
            long count = all.count() / NUMBERS;
            return Checks.given("views", views).view(all, row * count, count);
        }

        /** Returns which block it is of this rank's. */
        public int index() {
            return index;
        }

        /** Returns the number of the keys' chunk. */
        public int keyChunk() {
            return keyChunk;
        }

        /** Returns whether queries and keys are the same tokens. */
        public boolean isOwn() {
            return queryChunk == keyChunk;
        }

        /** Returns the first query, counted from the rank's first token. */
        public long firstQuery() {
            return firstQuery;
        }

        /** Returns the first key, counted from that of its chunk. */
        public long firstKey() {
            return firstKey;
        }
    }

    private final HostRegions regions;
    private final List<Block> blocks = new ArrayList<>();
    private final CuSeqlens localOffsets = new CuSeqlens();
    private @Nullable StartPositions starts;
    private @Nullable Sequences local;
    /** Regions that hold numbers, and the numbers in the last of them. */
    private int taken;

    private int written;
    private int used;

    private @Nullable Sequences whole;
    private int version;

    /** Makes one for sequences of {@code device}. */
    public RingSequences(Device device) {
        regions = new HostRegions(Checks.given("device", device));
    }

    /** Returns whether this was set for these sequences as they are. */
    public boolean isOf(Sequences sequences) {
        return isLive()
                && whole == sequences
                && version == sequences.cuSeqlens().version();
    }

    /** Returns whether what it was set for is still there. */
    public boolean isLive() {
        return whole != null && localOffsets.isLive();
    }

    /** Forgets what it was set for. */
    public void forget() {
        whole = null;
    }

    /**
     * Enqueues the offsets of a rank's sequences and blocks.
     *
     * @param sequences of all tokens
     * @param bounds the first token of each chunk, then the number of tokens
     * @param own numbers of this rank's chunks, in the order in which it has their tokens
     * @param scope holds the offsets on the device
     * @throws IllegalArgumentException when sequences are not packed, or there are gaps between them, or chunks do not cover the tokens
     */
    public void set(Sequences sequences, long[] bounds, int[] own, Order order, Scope scope) {
        whole = null;
        check(sequences);
        checkChunks(sequences.tokens(), Checks.given("bounds", bounds), Checks.given("own", own));
        Checks.given("order", order);
        if (Inside.capture(Checks.given("scope", scope).stream()) != null) {
            throw new CaptureException("ring attention: expected a stream that does not capture, for each rank copies"
                    + " offsets of its part of the sequences from the host, got " + scope.stream()
                    + "; enqueue steps of ranks that pass keys on one by one");
        }
        CuSeqlens offsets = sequences.cuSeqlens();
        // Offsets of own tokens and starts; a block has offsets of queries and of keys, and numbers.
        regions.reserve(NUMBERS * (offsets.sequences() + own.length + 2L), 2 + 3 * own.length * bounds.length);
        taken = 0;
        used = 0;
        setLocal(offsets, bounds, own, scope);
        long first = 0;
        for (int chunk : own) {
            addOwn(offsets, bounds, chunk, first, scope);
            for (int other = 0; other < bounds.length - 1; other++) {
                if (other < chunk || (other > chunk && order == Order.ALL)) {
                    addOther(offsets, bounds, chunk, other, first, scope);
                }
            }
            first += bounds[chunk + 1] - bounds[chunk];
        }
        whole = sequences;
        version = offsets.version();
    }

    private static void check(Sequences sequences) {
        PackedPart.checkPacked(sequences, "ranks pass keys on");
        if (sequences.scoreMask() != null) {
            throw new IllegalArgumentException("scoreMask: expected none where ranks pass keys on, got "
                    + Checks.describe(sequences.scoreMask())
                    + "; ContextParallel.of exchanges heads, for which it works");
        }
    }

    private static void checkChunks(long tokens, long[] bounds, int[] own) {
        int chunks = bounds.length - 1;
        boolean covers = chunks > 0 && bounds[0] == 0 && bounds[chunks] == tokens;
        for (int i = 0; covers && i < chunks; i++) {
            covers = bounds[i] < bounds[i + 1];
        }
        if (!covers) {
            throw new IllegalArgumentException("bounds: expected 0, then numbers that increase up to the " + tokens
                    + " tokens, got " + Arrays.toString(bounds));
        }
        for (int chunk : own) {
            if (chunk < 0 || chunk >= chunks) {
                throw new IllegalArgumentException(
                        "own: expected numbers of chunks, 0 to " + (chunks - 1) + ", got " + Arrays.toString(own));
            }
        }
    }

    /** Begins the numbers of another tensor. */
    private MemorySegment region() {
        written = 0;
        return regions.get(taken++);
    }

    private void write(MemorySegment region, int value) {
        region.setAtIndex(INT, written++, value);
    }

    private void setLocal(CuSeqlens offsets, long[] bounds, int[] own, Scope scope) {
        MemorySegment ends = region();
        write(ends, 0);
        int end = 0;
        for (int chunk : own) {
            end = writeEnds(offsets, bounds, chunk, end, ends);
        }
        int count = written - 1;
        localOffsets.set(scope, ends, count);
        MemorySegment first = region();
        for (int chunk : own) {
            for (int i = 0; i < offsets.sequences(); i++) {
                if (tokens(offsets, i, bounds, chunk) > 0) {
                    write(first, first(offsets, i, bounds, chunk));
                }
            }
        }
        StartPositions present = StartPositions.taken(starts, scope, first, count, offsets.longest());
        if (local == null) {
            local = Sequences.packed(localOffsets).startingAt(present);
        }
        starts = present;
    }

    /** Writes where each sequence ends of which the chunk has tokens; returns where the last one does. */
    private int writeEnds(CuSeqlens offsets, long[] bounds, int chunk, int begin, MemorySegment ends) {
        int end = begin;
        for (int i = 0; i < offsets.sequences(); i++) {
            int tokens = tokens(offsets, i, bounds, chunk);
            if (tokens > 0) {
                end += tokens;
                write(ends, end);
            }
        }
        return end;
    }

    /** Returns how many tokens of a sequence a chunk has. */
    private static int tokens(CuSeqlens offsets, int sequence, long[] bounds, int chunk) {
        long first = Math.max(bounds[chunk], offsets.offset(sequence));
        return (int) Math.max(0, Math.min(bounds[chunk + 1], offsets.offset(sequence + 1)) - first);
    }

    private void addOwn(CuSeqlens offsets, long[] bounds, int chunk, long firstQuery, Scope scope) {
        MemorySegment ends = region();
        write(ends, 0);
        writeEnds(offsets, bounds, chunk, 0, ends);
        Block block = next(chunk, chunk, firstQuery, 0);
        int count = written - 1;
        block.queryOffsets.set(scope, ends, count);
        if (block.sequences == null) {
            block.sequences = Sequences.packed(block.queryOffsets);
        }
        MemorySegment numbers = region();
        for (int i = 0; i < offsets.sequences(); i++) {
            if (tokens(offsets, i, bounds, chunk) > 0) {
                write(numbers, i);
            }
        }
        for (int side = 1; side < NUMBERS; side++) {
            for (int i = 0; i < offsets.sequences(); i++) {
                if (tokens(offsets, i, bounds, chunk) > 0) {
                    write(numbers, first(offsets, i, bounds, chunk));
                }
            }
        }
        block.numbers = copied(numbers, count, scope);
    }

    /** Returns the number of a sequence's first token in a chunk. */
    private static int first(CuSeqlens offsets, int sequence, long[] bounds, int chunk) {
        return (int) Math.max(0, bounds[chunk] - offsets.offset(sequence));
    }

    private static Tensor copied(MemorySegment numbers, int sequences, Scope scope) {
        Tensor tensor = scope.tensor(DType.INT32, NUMBERS, sequences);
        tensor.copyFrom(scope.stream(), numbers);
        Inside.fix(tensor);
        return tensor;
    }

    private void addOther(CuSeqlens offsets, long[] bounds, int chunk, int other, long firstQuery, Scope scope) {
        // The sequence that may reach over: that of the first query to the left, that of the last one to the right.
        int sequence = holder(offsets, other < chunk ? bounds[chunk] : bounds[chunk + 1] - 1);
        int queries = tokens(offsets, sequence, bounds, chunk);
        int keys = tokens(offsets, sequence, bounds, other);
        if (keys == 0) {
            return;
        }
        long query = Math.max(0, offsets.offset(sequence) - bounds[chunk]);
        long key = Math.max(0, offsets.offset(sequence) - bounds[other]);
        Block block = next(chunk, other, firstQuery + query, key);
        setOne(block.queryOffsets, queries, scope);
        setOne(block.keyOffsets, keys, scope);
        MemorySegment numbers = region();
        write(numbers, sequence);
        write(numbers, first(offsets, sequence, bounds, chunk));
        write(numbers, first(offsets, sequence, bounds, other));
        block.numbers = copied(numbers, 1, scope);
        if (block.sequences == null) {
            block.sequences = Sequences.packed(block.queryOffsets).withKeys(Sequences.packed(block.keyOffsets));
        }
    }

    private void setOne(CuSeqlens target, int tokens, Scope scope) {
        MemorySegment both = region();
        write(both, 0);
        write(both, tokens);
        target.set(scope, both, 1);
    }

    /** Returns the sequence that has a token: the last one that begins there or before. */
    private static int holder(CuSeqlens offsets, long token) {
        int low = 0;
        int high = offsets.sequences() - 1;
        while (low < high) {
            int middle = (low + high + 1) >>> 1;
            if (offsets.offset(middle) <= token) {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        return low;
    }

    private Block next(int queryChunk, int keyChunk, long firstQuery, long firstKey) {
        // Blocks of a chunk with itself, and others, keep their objects apart: they are described differently.
        Block block = null;
        for (int i = used; i < blocks.size() && block == null; i++) {
            Block one = blocks.get(i);
            boolean wasOwn = one.queryChunk == one.keyChunk;
            if (wasOwn == (queryChunk == keyChunk)) {
                block = one;
                blocks.set(i, blocks.get(used));
                blocks.set(used, one);
            }
        }
        if (block == null) {
            block = new Block();
            blocks.add(block);
            blocks.set(blocks.size() - 1, blocks.get(used));
            blocks.set(used, block);
        }
        block.index = used;
        used++;
        block.queryChunk = queryChunk;
        block.keyChunk = keyChunk;
        block.firstQuery = firstQuery;
        block.firstKey = firstKey;
        return block;
    }

    /** Returns this rank's tokens as sequences: what each chunk has of each, with the position of its first token. */
    public Sequences local() {
        return Checks.given("local", local);
    }

    /** Returns the number of tokens of all ranks. */
    public long tokens() {
        return Checks.given("whole", whole).tokens();
    }

    /** Returns the number of blocks. */
    public int blocks() {
        return used;
    }

    /**
     * Returns a block: those of each chunk with itself come before others of that chunk.
     *
     * @throws IndexOutOfBoundsException when there are not as many {@link #blocks}
     */
    public Block block(int index) {
        if (index < 0 || index >= used) {
            throw new IndexOutOfBoundsException("index: expected one of " + used + " blocks, got " + index);
        }
        return blocks.get(index);
    }

    /** Frees the host's memory. */
    @Override
    public void close() {
        regions.close();
        whole = null;
    }
}
