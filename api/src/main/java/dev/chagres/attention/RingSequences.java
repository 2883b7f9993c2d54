package dev.chagres.attention;

import static dev.chagres.attention.PackedChunks.HostRegions.INT;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.attention.PackedChunks.HostRegions;
import dev.chagres.bindings.CaptureException;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * For layers: the part of one of several ranks of attention over packed sequences whose tokens are cut into chunks: its own tokens as
 * sequences, and a block for each chunk of keys that one of its chunks of queries sees.
 *
 * <p>At most one sequence has queries in one chunk and keys in another one, so the block of two chunks has consecutive queries and
 * consecutive keys of that sequence. The block of a chunk with itself has all sequences of the chunk.
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
        /** Keys of the query's own chunk by the mask, and all keys of earlier chunks. */
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
        /** INT32 [3, B]: the index of each sequence, and the indices within it of its first query and its first key. */
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

        /** Returns the index of the block among this rank's blocks. */
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
    private final SequenceChunks chunks = new SequenceChunks();
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

    /** Returns whether it was set and its offsets are still valid. */
    public boolean isLive() {
        return whole != null && localOffsets.isLive();
    }

    /** Makes {@link #isOf} and {@link #isLive} false until the next {@link #set}. */
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
        Checks.given("bounds", bounds, "own", own);
        CuSeqlens offsets = sequences.cuSeqlens();
        chunks.set(offsets, sequences.tokens(), bounds);
        checkOwn(own);
        Checks.given("order", order);
        if (Inside.capture(Checks.given("scope", scope).stream()) != null) {
            throw new CaptureException("ring attention: expected a stream that does not capture, for each rank copies"
                    + " offsets of its part of the sequences from the host, got " + scope.stream()
                    + "; enqueue steps with ring attention one by one");
        }
        // Offsets of own tokens and starts; a block has offsets of queries and of keys, and numbers.
        regions.reserve(NUMBERS * (offsets.sequences() + own.length + 2L), 2 + 3 * own.length * bounds.length);
        taken = 0;
        used = 0;
        setLocal(own, scope);
        long first = 0;
        for (int chunk : own) {
            addOwn(chunk, first, scope);
            for (int other = 0; other < chunks.chunks(); other++) {
                if (other < chunk || (other > chunk && order == Order.ALL)) {
                    addOther(chunk, other, first, scope);
                }
            }
            first += chunks.size(chunk);
        }
        whole = sequences;
        version = offsets.version();
    }

    private static void check(Sequences sequences) {
        PackedChunk.checkPacked(sequences, "ranks form a ring");
        if (sequences.scoreMask() != null) {
            throw new IllegalArgumentException("scoreMask: expected none with ring attention, got "
                    + Checks.describe(sequences.scoreMask())
                    + "; ContextParallel.of, which exchanges heads, allows it");
        }
    }

    private void checkOwn(int[] own) {
        for (int chunk : own) {
            if (chunk < 0 || chunk >= chunks.chunks()) {
                throw new IllegalArgumentException("own: expected numbers of chunks, 0 to " + (chunks.chunks() - 1)
                        + ", got " + Arrays.toString(own));
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

    private void setLocal(int[] own, Scope scope) {
        MemorySegment ends = region();
        write(ends, 0);
        int end = 0;
        for (int chunk : own) {
            end = writeEnds(chunk, end, ends);
        }
        int count = written - 1;
        localOffsets.set(scope, ends, count);
        MemorySegment first = region();
        for (int chunk : own) {
            writeFirsts(chunk, first);
        }
        StartPositions present = StartPositions.taken(starts, scope, first, count, chunks.longest());
        if (local == null) {
            local = Sequences.packed(localOffsets).startingAt(present);
        }
        starts = present;
    }

    /** Writes, for each sequence with tokens in the chunk, the end of its tokens; returns the last end. */
    private int writeEnds(int chunk, int begin, MemorySegment ends) {
        int end = begin;
        for (int i = 0; i < chunks.sequences(); i++) {
            int tokens = chunks.tokens(i, chunk);
            if (tokens > 0) {
                end += tokens;
                write(ends, end);
            }
        }
        return end;
    }

    /** Writes, for each sequence with tokens in the chunk, the index within the sequence of the first of them. */
    private void writeFirsts(int chunk, MemorySegment firsts) {
        for (int i = 0; i < chunks.sequences(); i++) {
            if (chunks.tokens(i, chunk) > 0) {
                write(firsts, chunks.firstOfSequence(i, chunk));
            }
        }
    }

    private void addOwn(int chunk, long firstQuery, Scope scope) {
        MemorySegment ends = region();
        write(ends, 0);
        writeEnds(chunk, 0, ends);
        Block block = next(chunk, chunk, firstQuery, 0);
        int count = written - 1;
        block.queryOffsets.set(scope, ends, count);
        if (block.sequences == null) {
            block.sequences = Sequences.packed(block.queryOffsets);
        }
        MemorySegment numbers = region();
        for (int i = 0; i < chunks.sequences(); i++) {
            if (chunks.tokens(i, chunk) > 0) {
                write(numbers, i);
            }
        }
        writeFirsts(chunk, numbers); // of queries
        writeFirsts(chunk, numbers); // of keys
        block.numbers = copied(numbers, count, scope);
    }

    private static Tensor copied(MemorySegment numbers, int sequences, Scope scope) {
        Tensor tensor = scope.tensor(DType.INT32, NUMBERS, sequences);
        tensor.copyFrom(scope.stream(), numbers);
        Inside.fix(tensor);
        return tensor;
    }

    private void addOther(int chunk, int other, long firstQuery, Scope scope) {
        int sequence = chunks.shared(chunk, other);
        int queries = chunks.tokens(sequence, chunk);
        int keys = chunks.tokens(sequence, other);
        if (keys == 0) {
            return;
        }
        Block block = next(
                chunk, other, firstQuery + chunks.firstOfChunk(sequence, chunk), chunks.firstOfChunk(sequence, other));
        setOne(block.queryOffsets, queries, scope);
        setOne(block.keyOffsets, keys, scope);
        MemorySegment numbers = region();
        write(numbers, sequence);
        write(numbers, chunks.firstOfSequence(sequence, chunk));
        write(numbers, chunks.firstOfSequence(sequence, other));
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

    /** Returns this rank's tokens as sequences: the part of each sequence in each chunk, with the position of its first token. */
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
