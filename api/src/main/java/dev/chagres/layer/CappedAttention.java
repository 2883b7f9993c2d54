package dev.chagres.layer;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Tensor;
import dev.chagres.attention.AttentionMask.Kind;
import dev.chagres.attention.Sequences;
import dev.chagres.attention.Sequences.Padding;
import dev.chagres.bindings.Provider;
import dev.chagres.cudnn.AttentionBuilder;
import dev.chagres.cudnn.AttentionBuilder.Diagonal;
import dev.chagres.cudnn.DataType;
import dev.chagres.cudnn.ExecutionPlan;
import dev.chagres.cudnn.GraphBuilder;
import dev.chagres.cudnn.GraphTensor;
import dev.chagres.cudnn.OperationGraph;
import dev.chagres.cudnn.PointwiseMode;
import dev.chagres.cudnn.SdpaForward;
import dev.chagres.cudnn.SdpaGradients;
import dev.chagres.cudnn.UnsupportedGraphException;
import dev.chagres.cudnn.VariantPack;
import dev.chagres.internal.Inside;
import dev.chagres.internal.memory.DeviceState;
import dev.chagres.pass.Pass;
import dev.chagres.te.AttentionProblem.Order;
import dev.chagres.te.AttentionTensors;
import dev.chagres.te.QkvFormat;
import dev.chagres.te.QkvLayout;
import dev.chagres.te.QkvLayout.Packing;
import dev.chagres.te.SoftmaxType;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import org.jspecify.annotations.Nullable;

/**
 * Attention whose scores have a soft cap, as graphs of cuDNN's, for TE has no soft cap: {@code o = softmax(c tanh(scale q k^T / c) + mask) v}.
 * On an H200 they take a fifth of the time of our own kernels, forward and backward.
 *
 * <p>They take dense sequences of full length in 16 bits, and write the log-sum-exp that our own kernels read, so that either computes the
 * gradients of a forward call. Weights are rounded to the type of the query before they are multiplied. The CPU reference, which goes through a
 * graph operation by operation, takes twenty times as long as for our own kernels: there these compute.
 *
 * <p>Threading: the device's thread.
 */
final class CappedAttention {
    /** cuDNN keeps the gradients of all scores, in 16 bits; for more than so many bytes our own kernels compute gradients. */
    private static final long MOST_SCORE_BYTES = 1L << 30;

    private static final long SCORE_BYTES = 2;
    /** Our own kernels compute gradients faster where a query sees fewer than this share of the keys. */
    private static final int NARROW_SHARE = 8;
    /** Wider ones, which no sequence fills, are none to a graph. */
    private static final long WIDEST_WINDOW = 1L << 30;

    private record Key(
            AttentionConfig config, DType dtype, QkvFormat format, long batch, long length, long keyLength) {}

    /** The plans of one device, which closes them; attentions of one form share them. */
    private static final class Plans {
        private static final DeviceState.Attachment<Plans> OF_DEVICE = new DeviceState.Attachment<>(_ -> new Plans());

        private final Map<Key, Plan> forward = new HashMap<>();
        private final Map<Key, Plan> backward = new HashMap<>();

        static Plans of(Device device) {
            return Inside.state(device).get(OF_DEVICE);
        }
    }

    /** A plan of a graph of these tensors; none where cuDNN has no engine for it. */
    private record Plan(@Nullable ExecutionPlan plan, List<GraphTensor> tensors) {
        static Plan of(GraphBuilder builder, Device device, GraphTensor... tensors) {
            try {
                return new Plan(builder.build().plan(device).leaveToDevice(), List.of(tensors));
            } catch (UnsupportedGraphException refused) {
                return new Plan(null, List.of());
            }
        }
    }

    /** A plan with what one attention binds to it. */
    private static final class Bound {
        private final List<GraphTensor> tensors;
        private final @Nullable ExecutionPlan plan;
        private final @Nullable VariantPack pack;
        private int next;

        Bound(Plan of) {
            tensors = of.tensors;
            plan = of.plan;
            pack = plan == null ? null : plan.variantPack();
        }

        /** Binds what {@link #set} is given from now on to the first tensors. */
        Bound begin() {
            next = 0;
            return this;
        }

        /** Binds the next tensor, in the order of the plan's. */
        Bound set(Tensor tensor) {
            Objects.requireNonNull(pack).set(tensors.get(next++), tensor);
            return this;
        }

        void run(Pass pass) {
            Objects.requireNonNull(plan).run(pass.stream(), Objects.requireNonNull(pack));
        }
    }

    /** The plans of one shape. */
    private static final class Shaped {
        private final Device device;
        private final Key key;
        private final Bound forward;
        private @Nullable Bound backward;

        Shaped(Device device, Key key) {
            this.device = device;
            this.key = key;
            forward = new Bound(Plans.of(device)
                    .forward
                    .computeIfAbsent(key, of -> new Graph(of, "capped attention").forward(device)));
        }

        boolean is(Device asked, DType dtype, Sequences sequences) {
            return device == asked
                    && key.dtype == dtype
                    && key.format == sequences.format()
                    && key.batch == sequences.batch()
                    && key.length == sequences.length()
                    && key.keyLength == sequences.keys().length();
        }

        Bound backward() {
            Bound present = backward;
            if (present == null) {
                present = new Bound(Plans.of(device)
                        .backward
                        .computeIfAbsent(key, of -> new Graph(of, "gradients of capped attention").backward(device)));
                backward = present;
            }
            return present;
        }
    }

    private final AttentionConfig config;
    private final ScoreMods rules;
    private final List<Shaped> shapes = new ArrayList<>();
    private boolean onReference;

    CappedAttention(AttentionConfig config, ScoreMods rules) {
        this.config = config;
        this.rules = rules;
    }

    /** Lets graphs compute on the CPU reference, too, so that they are tested without a GPU. */
    void takeReference() {
        onReference = true;
    }

    /** Returns why these graphs do not compute a call, or null; plans are made when they are first asked about. */
    @Nullable
    String refusal(QkvLayout layout, DType dtype, Sequences sequences, Pass pass) {
        if (config.softcap() == 0) {
            return "scores have no soft cap";
        }
        if (dtype == DType.FLOAT32) {
            return "cuDNN has no attention in FLOAT32";
        }
        if (sequences.format() == QkvFormat.THD
                || sequences.padding() != Padding.NONE
                || KernelChoice.isSingle(sequences)
                || sequences.tokens() == 0
                || sequences.keys().tokens() == 0) {
            return "cuDNN's graph of a soft cap takes dense sequences of full length, of several tokens";
        }
        if (layout.packing() == Packing.ALL) {
            return "cuDNN's graph of a soft cap takes query, key and value apart";
        }
        if (!rules.addsNothing(sequences)
                || config.softmaxType() != SoftmaxType.VANILLA
                || !config.dropout().isNone()) {
            return "cuDNN's graph of a soft cap has nothing else that changes scores or weights";
        }
        if (hidesAll(sequences)) {
            return "cuDNN's graph of a soft cap does not write 0 for queries without keys";
        }
        if (!onReference && pass.device().provider() == Provider.REFERENCE) {
            return "the CPU reference is slower by cuDNN's graph of a soft cap, which a GPU takes";
        }
        return shaped(dtype, sequences, pass).forward.plan == null ? "cuDNN has no engine for a soft cap here" : null;
    }

    /** Returns whether some query may see no key. */
    private boolean hidesAll(Sequences sequences) {
        boolean fromFirst = config.mask().kind() == Kind.CAUSAL && config.mask().windowLeft() < 0;
        boolean all = config.mask().kind() == Kind.NONE && !isWindow();
        return !fromFirst && !all && sequences.length() > sequences.keys().length();
    }

    private boolean isWindow() {
        return config.mask().windowLeft() >= 0 || config.mask().windowRight() >= 0;
    }

    private Shaped shaped(DType dtype, Sequences sequences, Pass pass) {
        for (int i = 0; i < shapes.size(); i++) {
            if (shapes.get(i).is(pass.device(), dtype, sequences)) {
                return shapes.get(i);
            }
        }
        Key key = new Key(
                config,
                dtype,
                sequences.format(),
                sequences.batch(),
                sequences.length(),
                sequences.keys().length());
        Shaped made = new Shaped(pass.device(), key);
        shapes.add(made);
        return made;
    }

    /** Enqueues a call that {@link #refusal} does not refuse. */
    void forward(AttentionTensors tensors, Sequences sequences, Pass pass) {
        Tensor q = tensors.query();
        shaped(q.dtype(), sequences, pass)
                .forward
                .begin()
                .set(q)
                .set(tensors.key())
                .set(tensors.value())
                .set(tensors.output())
                .set(tensors.statistics())
                .run(pass);
    }

    /**
     * Enqueues the gradients of a forward call and returns true; or returns false, where our own kernels are to do so.
     *
     * @param rowSums like the statistics, overwritten
     */
    boolean backward(AttentionTensors tensors, Tensor rowSums, Sequences sequences, Pass pass) {
        if (whyNotBackward(sequences) != null) {
            return false;
        }
        Tensor q = tensors.query();
        Bound bound = shaped(q.dtype(), sequences, pass).backward();
        if (bound.plan == null) {
            return false;
        }
        bound.begin()
                .set(q)
                .set(tensors.key())
                .set(tensors.value())
                .set(tensors.outputGradient())
                .set(tensors.output())
                .set(tensors.statistics())
                .set(rowSums)
                .set(tensors.queryGradient())
                .set(tensors.keyGradient())
                .set(tensors.valueGradient())
                .run(pass);
        return true;
    }

    private @Nullable String whyNotBackward(Sequences sequences) {
        if (config.order() == Order.DETERMINISTIC) {
            return "sums in the same order each time";
        }
        long keys = sequences.keys().length();
        long left = config.mask().windowLeft();
        long seen = Math.min(left, keys) + 1 + Math.clamp(config.mask().windowRight(), 0, keys);
        if (left >= 0 && seen * NARROW_SHARE < keys) {
            return "a window narrower than an eighth of the keys";
        }
        return scoreBytes(sequences) > MOST_SCORE_BYTES
                ? "gradients of scores of over " + MOST_SCORE_BYTES + " bytes"
                : null;
    }

    private long scoreBytes(Sequences sequences) {
        return SCORE_BYTES
                * sequences.batch()
                * config.heads()
                * sequences.length()
                * sequences.keys().length();
    }

    /** Describes the kernels of a call that {@link #refusal} does not refuse. */
    String explain(Sequences sequences) {
        String own = whyNotBackward(sequences);
        return "a graph of cuDNN's, for TE has no soft cap of the scores; its gradients "
                + (own == null
                        ? "by another, which wants about " + scoreBytes(sequences) + " bytes of workspace"
                        : "by ops_attention_backward, for " + own);
    }

    /** The graphs of one shape. */
    private static final class Graph {
        private final Key key;
        private final GraphBuilder builder;
        private final GraphTensor q;
        private final GraphTensor kT;
        private final GraphTensor cap;
        /** Scores divided by the cap. */
        private @Nullable GraphTensor share;

        Graph(Key key, String name) {
            this.key = key;
            builder = OperationGraph.builder(name);
            q = builder.tensor(
                    "q", key.dtype, dims(key.config.heads(), key.length), strides(key.config.heads(), key.length));
            kT = turned("k");
            cap = builder.scalar("cap", 4, key.config.softcap());
        }

        private long[] dims(int heads, long length) {
            return new long[] {key.batch, heads, length, key.config.headDim()};
        }

        /** Of tokens whose heads lie side by side. */
        private long[] strides(int heads, long length) {
            long headDim = key.config.headDim();
            long token = heads * headDim;
            return key.format == QkvFormat.SBHD
                    ? new long[] {token, headDim, key.batch * token, 1}
                    : new long[] {length * token, headDim, token, 1};
        }

        /** Returns keys or values as [B, g, d, S']. */
        private GraphTensor turned(String name) {
            long[] dims = dims(key.config.keyHeads(), key.keyLength);
            long[] strides = strides(key.config.keyHeads(), key.keyLength);
            return builder.tensor(name, key.dtype, new long[] {dims[0], dims[1], dims[3], dims[2]}, new long[] {
                strides[0], strides[1], strides[3], strides[2]
            });
        }

        private AttentionBuilder attention() {
            return builder.attention("o", q, kT)
                    .scale(key.config.scale())
                    .window(
                            keys(key.config.mask().windowLeft()),
                            keys(key.config.mask().windowRight()),
                            key.config.mask().kind() == Kind.CAUSAL ? Diagonal.TOP_LEFT : Diagonal.BOTTOM_RIGHT)
                    .scores(this::capped, dx -> builder.pointwise("dcapped", PointwiseMode.TANH_BWD, dx, share()));
        }

        private static long keys(long window) {
            return window < 0 || window > WIDEST_WINDOW ? Long.MAX_VALUE : window;
        }

        private GraphTensor capped(GraphTensor scores) {
            share = builder.pointwise("share", PointwiseMode.DIV, scores, cap);
            GraphTensor tanh = builder.pointwise("tanh", PointwiseMode.TANH_FWD, share);
            return builder.pointwise("capped", PointwiseMode.MUL, tanh, cap);
        }

        private GraphTensor share() {
            return Objects.requireNonNull(share);
        }

        Plan forward(Device device) {
            int keyHeads = key.config.keyHeads();
            GraphTensor v =
                    builder.tensor("v", key.dtype, dims(keyHeads, key.keyLength), strides(keyHeads, key.keyLength));
            SdpaForward results = attention().forward(v);
            builder.output(results.o(), DataType.of(key.dtype), strides(key.config.heads(), key.length));
            builder.output(results.stats());
            return Plan.of(builder, device, q, kT, v, results.o(), results.stats());
        }

        Plan backward(Device device) {
            int heads = key.config.heads();
            long[] rows = strides(heads, key.length);
            GraphTensor dy = builder.tensor("dy", key.dtype, dims(heads, key.length), rows);
            GraphTensor y = builder.tensor("y", key.dtype, dims(heads, key.length), rows);
            GraphTensor stats = builder.tensor("stats", DType.FLOAT32, key.batch, heads, key.length, 1);
            GraphTensor vT = turned("v");
            SdpaGradients results = attention().backward(dy, vT, y, stats);
            long[] keyRows = strides(key.config.keyHeads(), key.keyLength);
            builder.output(results.dq(), DataType.of(key.dtype), rows);
            builder.output(results.dk(), DataType.of(key.dtype), keyRows);
            builder.output(results.dv(), DataType.of(key.dtype), keyRows);
            GraphTensor rowSums = Objects.requireNonNull(results.rowSums());
            return Plan.of(builder, device, q, kT, vT, dy, y, stats, rowSums, results.dq(), results.dk(), results.dv());
        }
    }
}
