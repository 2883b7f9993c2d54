package dev.chagres.trainer.command;

import dev.chagres.DType;
import dev.chagres.Event;
import dev.chagres.HostBuffer;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.attention.CuSeqlens;
import dev.chagres.attention.Sequences;
import dev.chagres.bindings.Provider;
import dev.chagres.models.data.EsmVocabulary;
import dev.chagres.models.esm.Esm2;
import dev.chagres.models.esm.Esm2Base;
import dev.chagres.models.esm.Esm2Classifier;
import dev.chagres.ops.Elementwise;
import dev.chagres.ops.SequencePool;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Pass;
import dev.chagres.recipe.Quantizers;
import dev.chagres.recipe.Recipe;
import dev.chagres.te.QkvFormat;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.Arrays;
import java.util.List;
import java.util.function.BiFunction;
import java.util.stream.IntStream;
import org.jspecify.annotations.Nullable;

/**
 * An ESM-2 that computes packed sequences of tokens, and brings the result to the host.
 *
 * <p>Threading: the device's thread.
 */
final class PackedModel implements AutoCloseable {
    private static final int[] NOTHING = {};

    private final BiFunction<Tensor, Pass, Tensor> model;
    private final Pass pass;
    private final @Nullable Quantizers quantizers;
    /** Of the batch that is read, and of the one that is computed meanwhile. */
    private final States[] states;

    /** Sequences that a batch of different lengths has at least. */
    private final int leastSequences;

    private int started;
    /** Of a batch so far. */
    private int mostTokens;

    private int columns;

    /**
     * @param recipe by which the products of the layers are computed in eight bits; null: in the model's type
     * @throws IllegalArgumentException when the device cannot compute the recipe
     */
    private PackedModel(
            BiFunction<Tensor, Pass, Tensor> model,
            Parameters parameters,
            @Nullable Recipe recipe,
            int leastSequences) {
        this.model = model;
        this.leastSequences = leastSequences;
        Stream stream = parameters.scope().stream();
        quantizers = recipe == null ? null : Quantizers.allocate(parameters, recipe);
        pass = Pass.evaluation(stream);
        if (quantizers != null) {
            pass.autocast(quantizers);
        }
        states = new States[] {new States(stream), new States(stream)};
    }

    /**
     * Returns one that computes the states behind the last norm, H numbers a token.
     *
     * @param sequences that batches have as a rule: cuDNN makes a plan for so many, rounded up, and takes it for all
     */
    static PackedModel hidden(Esm2Base model, @Nullable Recipe recipe, int sequences) {
        return new PackedModel(model::hidden, model.parameters(), recipe, Batch.room(sequences));
    }

    /** Returns one that computes the scores of each token, {@link EsmVocabulary#PADDED_SIZE} numbers a token, of which 33 count. */
    static PackedModel logits(Esm2 model, @Nullable Recipe recipe) {
        return new PackedModel(model::logits, model.parameters(), recipe, 0);
    }

    /** Returns one that computes the scores of each token, as many columns as {@link Esm2Classifier#logits} has. */
    static PackedModel logits(Esm2Classifier model) {
        return new PackedModel(model::logits, model.parameters(), null, 0);
    }

    /**
     * Neighbouring tokens of a batch whose states the device averages, in their order and apart from each other.
     *
     * @param firsts the first token of each, counted in the whole batch
     * @param counts how many tokens each has
     */
    record Spans(int[] firsts, int[] counts) {}

    /** What the device computes of a batch and copies to the host by itself, and what it reads of the batch. */
    static final class States implements AutoCloseable {
        private final Stream stream;
        private final Event copied;
        private @Nullable HostBuffer numbers;
        private @Nullable HostBuffer buffer;
        private boolean underway;
        private DType dtype = DType.FLOAT32;
        private int columns;

        private States(Stream stream) {
            this.stream = stream;
            copied = stream.device().openEvent();
        }

        private void take(Tensor hidden) {
            HostBuffer target = room(buffer, hidden.byteSize());
            buffer = target;
            hidden.copyTo(stream, target);
            copied.record(stream);
            underway = true;
            dtype = hidden.dtype();
            columns = Math.toIntExact(hidden.size(1));
        }

        /** Returns pinned memory for {@code count} numbers that the device reads by itself, once it has read those before. */
        private MemorySegment numbers(long count) {
            await();
            HostBuffer present = room(numbers, count * Integer.BYTES);
            numbers = present;
            return present.segment();
        }

        /** Returns the memory that is there, or a new one of this size where a batch is larger than those before. */
        private HostBuffer room(@Nullable HostBuffer present, long bytes) {
            if (present != null && present.segment().byteSize() >= bytes) {
                return present;
            }
            close(present);
            return HostBuffer.pinned(stream.device(), bytes);
        }

        /** Waits until the states are on the host. */
        void await() {
            if (underway) {
                copied.synchronize();
                underway = false;
            }
        }

        /** Writes the states of a token, or the mean of a span; {@link #await} comes before. */
        void read(int index, float[] row) {
            HostBuffer source = buffer;
            if (source == null) {
                throw new IllegalStateException("No batch was started.");
            }
            dtype.toFloats(source.segment(), (long) index * columns, row, 0, columns);
        }

        private static void close(@Nullable HostBuffer buffer) {
            if (buffer != null) {
                buffer.close();
            }
        }

        @Override
        public void close() {
            close(buffer);
            close(numbers);
            copied.close();
        }
    }

    /**
     * Begins to compute a batch, without waiting for the one before. Its numbers stay until the batch after the next one is started, so that one
     * batch is read while the next is computed.
     *
     * @param spans what is averaged on the device, in FP32; null: the states of each token are copied
     */
    States start(List<int[]> sequences, @Nullable Spans spans) {
        States next = states[started++ % states.length];
        boolean plans = pass.device().provider() == Provider.CUDA;
        Batch batch = new Batch(sequences, plans ? mostTokens / 2 + 1 : 0, leastSequences);
        mostTokens = Math.max(mostTokens, batch.ids.length);
        int[] means = spans == null ? NOTHING : offsets(spans.counts());
        MemorySegment host = next.numbers(batch.count() + 2L * means.length);
        Tensor hidden = model.apply(begin(batch, host), pass);
        next.take(spans == null ? hidden : means(hidden, spans.firsts(), means, host.asSlice(4L * batch.count())));
        return next;
    }

    /** Returns the numbers of each token, and more behind them that do not count; it waits for the device. */
    float[] compute(List<int[]> sequences) {
        Batch batch = new Batch(sequences, 0, 0);
        Tensor scores = model.apply(begin(batch, states[0].numbers(batch.count())), pass);
        columns = Math.toIntExact(scores.size(1));
        return scores.toFloats(pass.stream());
    }

    /** Returns how many numbers a token had in the latest call of {@link #compute}. */
    int columns() {
        return columns;
    }

    /**
     * The tokens of sequences, packed, and where each begins. Batches are filled up to few different sizes, for each of which kernels of
     * products are chosen once: with tokens of their own, again, as sequences that nobody reads. cuDNN plans attention for tokens and for
     * sequences up to a power of two, which takes it longer than it takes to compute a batch: a small batch at the end is filled up to more
     * than half of the largest one, and empty sequences follow.
     */
    static final class Batch {
        /** Rows of the tiles of products, which compute whole ones in any case. */
        private static final int TILE = 128;
        /** What is filled up is at most this part of a small batch. */
        private static final int PART = 16;
        /** From so many sequences on plans are made for powers of two, up to the others for multiples of these. */
        private static final int FEWEST = 32;

        private static final int MOST = 512;

        final int[] ids;
        final int[] offsets;

        /**
         * @param leastTokens that the batch has
         * @param leastSequences that it has, unless all are equally long, which faster kernels may compute
         */
        Batch(List<int[]> sequences, int leastTokens, int leastSequences) {
            int[] own = sequences.stream().flatMapToInt(Arrays::stream).toArray();
            int least = Math.max(own.length, leastTokens);
            int step = Math.clamp(Integer.highestOneBit(least / PART), 1, TILE);
            ids = Arrays.copyOf(own, Math.ceilDiv(least, step) * step);
            for (int i = own.length; i < ids.length; i++) {
                ids[i] = ids[i - own.length];
            }
            int[] lengths = sequences.stream().mapToInt(one -> one.length).toArray();
            int longest = Arrays.stream(lengths).max().orElse(1);
            int[] filled = IntStream.concat(
                            Arrays.stream(lengths),
                            IntStream.iterate(ids.length - own.length, left -> left > 0, left -> left - longest)
                                    .map(left -> Math.min(left, longest)))
                    .toArray();
            boolean differ = Arrays.stream(filled).anyMatch(length -> length != longest);
            offsets = offsets(differ ? Arrays.copyOf(filled, Math.max(filled.length, leastSequences)) : filled);
        }

        /** Returns up to how many sequences one plan computes, where batches have about {@code sequences}, a quarter more or less. */
        static int room(int sequences) {
            int many = Math.max(FEWEST, sequences + sequences / 4);
            int rounded = Integer.highestOneBit(many - 1) * 2;
            return rounded <= MOST ? rounded : Math.ceilDiv(many, MOST) * MOST;
        }

        int count() {
            return ids.length + offsets.length;
        }
    }

    private static int[] offsets(int[] lengths) {
        int[] offsets = new int[lengths.length + 1];
        for (int i = 0; i < lengths.length; i++) {
            offsets[i + 1] = offsets[i] + lengths[i];
        }
        return offsets;
    }

    /** Returns the ids of the tokens. */
    private Tensor begin(Batch batch, MemorySegment host) {
        pass.begin();
        Tensor ids = upload(batch.ids, host);
        MemorySegment behind = host.asSlice(4L * batch.ids.length);
        MemorySegment.copy(batch.offsets, 0, behind, ValueLayout.JAVA_INT, 0, batch.offsets.length);
        CuSeqlens offsets = new CuSeqlens();
        offsets.set(pass.scope(), behind, batch.offsets.length - 1);
        pass.sequences(Sequences.packed(offsets));
        return ids;
    }

    /** Enqueues a copy of the numbers, by way of host memory that stays as it is until then. */
    private Tensor upload(int[] numbers, MemorySegment host) {
        MemorySegment.copy(numbers, 0, host, ValueLayout.JAVA_INT, 0, numbers.length);
        Tensor tensor = pass.scope().tensor(DType.INT32, numbers.length);
        tensor.copyFrom(pass.stream(), host);
        return tensor;
    }

    private Tensor means(Tensor hidden, int[] firsts, int[] offsets, MemorySegment host) {
        Tensor exact = hidden;
        if (hidden.dtype() != DType.FLOAT32) {
            exact = pass.scope().tensor(DType.FLOAT32, hidden.size(0), hidden.size(1));
            Elementwise.cast(hidden, exact, pass.stream());
        }
        Tensor lengths = upload(offsets, host);
        // One number more, which counts only in the layout of padded tokens.
        int[] begins = Arrays.copyOf(firsts, offsets.length);
        begins[firsts.length] = Math.toIntExact(hidden.size(0));
        Tensor places = upload(begins, host.asSlice(4L * offsets.length));
        Tensor y = pass.scope().tensor(DType.FLOAT32, firsts.length, hidden.size(1));
        SequencePool.forward(exact, lengths, places, QkvFormat.THD, SequencePool.Kind.MEAN, y, null, pass.stream());
        return y;
    }

    /** Returns the tokens of residues, between {@code <cls>} and {@code <eos>}. */
    static int[] tokens(byte[] residues, int begin, int count) {
        int[] tokens = new int[count + 2];
        tokens[0] = EsmVocabulary.CLS;
        for (int i = 0; i < count; i++) {
            tokens[i + 1] = EsmVocabulary.token(residues[begin + i]);
        }
        tokens[count + 1] = EsmVocabulary.EOS;
        return tokens;
    }

    /** Frees the memory of the calls; the model stays. */
    @Override
    public void close() {
        for (States one : states) {
            one.close();
        }
        pass.close();
        if (quantizers != null) {
            quantizers.close();
        }
    }
}
