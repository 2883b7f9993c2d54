package dev.chagres.adapter;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Shape;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.ops.Columns;
import dev.chagres.ops.DropPath;
import dev.chagres.ops.Dropout;
import dev.chagres.ops.Elementwise;
import dev.chagres.ops.MatrixProduct;
import dev.chagres.ops.TokenPositions;
import dev.chagres.parallel.ParameterSplit;
import dev.chagres.parallel.TensorParallel;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.LoraConfig;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.pass.Pass;
import dev.chagres.pass.SavedTensor;
import dev.chagres.te.Gemm.Transpose;
import dev.chagres.te.Output;
import dev.chagres.te.QkvFormat;
import java.util.ArrayList;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * The adapters of one product {@code y = x W^T}: {@code y += factor dropout(x) A^T B^T}. The output of the product consists of sections, such as
 * query, key and value, and an adapter writes one of them.
 *
 * <p>Parameters: {@code lora_A} [n r, in], uniform numbers up to {@code 1 / sqrt(in)}, and {@code lora_B} [rows of the adapted sections, r],
 * zeros: the matrices of the n adapters one below the other. Where sections have ranks of their own, A has the sum of them as rows, and B the
 * columns of the largest; those that a section does not have are 0, and stay so. All of them take one pair of products, forward as backward: the second one reads B
 * with the r columns of each adapter in its own rows, and zeros elsewhere. With n = 3 and r = 16 that is as many operations as three pairs
 * whose products sum over 48 numbers, fewer than a tile of the GPU's matrix units has.
 *
 * <p>Products and parameters have the type of x, also where W is in eight bits. Where tensor-parallel ranks split the product, they split the
 * adapters in the same way, and what they sum of them they sum together with the product. Sequence-parallel ranks exchange the inner values [T, n
 * r], not the inputs.
 *
 * <p>Threading: the device's thread.
 */
public final class LowRankAdapter {
    /** How tensor-parallel ranks split the product. */
    public enum Split {
        /** Each rank has the whole product. */
        NONE,
        /** Each has a part of each section of the outputs. */
        OUTPUTS,
        /** Each has a part of the inputs, so that its output is a term of a sum over the ranks. */
        INPUTS
    }

    /**
     * A section of the output.
     *
     * @param name behind the part of the plan; empty for the whole product
     * @param size its columns, on all ranks
     */
    public record Section(String name, long size) {
        /** Checks that the name is there. */
        public Section {
            Checks.given("name", name);
        }
    }

    /**
     * What forward keeps for backward.
     *
     * <p>Threading: the device's thread.
     */
    public static final class Saved {
        private final SavedTensor low = new SavedTensor("the adapter's inner values");
        private final SavedTensor mask = new SavedTensor("the adapter's dropout mask");

        /** Makes an empty one. */
        public Saved() {}

        /** Returns whether forward has kept something since {@link #clear}. */
        public boolean isKept() {
            return !low.isEmpty();
        }

        /** Forgets what an earlier call kept. */
        public void clear() {
            low.clear();
            mask.clear();
        }
    }

    /** Adapted columns of the output of this rank, the rows of B that write them, and the inner values that they read. */
    private record Place(String name, long column, long row, long size, int rank, long inner, float factor) {}

    /** A section, and the rank and factor of its adapter. */
    private record Adapted(Section section, LoraConfig config) {}

    /** Of the first section; dropout is the same of all. */
    private final LoraConfig config;

    private final Parameter a;
    private final Parameter b;
    private final Split split;
    private final TensorParallel ranks;
    private final List<Place> places;
    /** Columns of this rank's output. */
    private final long outputs;
    /** Whether one adapter writes all of the output. */
    private final boolean isWhole;
    /** Inner values of all adapters. */
    private final long inner;
    /** Columns of B. */
    private final int rank;
    /** Whether all adapters have one factor. */
    private final boolean isEven;

    private final TokenPositions positions = new TokenPositions();
    /** The factors on the device, one where all are the same; empty before the first call. */
    private List<Tensor> factors = List.of();
    /** The gradient of the inner values, between the gradients of the parameters and of the input. */
    private @Nullable Tensor down;

    private LowRankAdapter(long inputs, List<Section> sections, List<Adapted> adapted, Split split, ModelPlan plan) {
        config = adapted.getFirst().config();
        this.split = split;
        inner = adapted.stream().mapToLong(one -> one.config().rank()).sum();
        rank = adapted.stream().mapToInt(one -> one.config().rank()).max().orElseThrow();
        isEven = adapted.stream().allMatch(one -> one.config().factor() == config.factor());
        ranks = plan.tensorParallel();
        boolean isSplit = ranks.isSplit() && split != Split.NONE;
        List<Long> sizes = adapted.stream().map(one -> one.section().size()).toList();
        long rows = sizes.stream().mapToLong(Long::longValue).sum();
        Shape low = Shape.of(inner, inputs);
        Shape high = Shape.of(rows, rank);
        boolean parts = isSplit && split == Split.OUTPUTS;
        boolean terms = isSplit && split == Split.INPUTS;
        a = (parts ? plan.withPartialGradients() : plan)
                .declareAdapter(
                        "lora_A",
                        Initializer.uniform((float) (1 / Math.sqrt(inputs))),
                        low,
                        terms ? part(low, 1, List.of(inputs)) : null);
        b = (terms ? plan.withPartialGradients() : plan)
                .declareAdapter("lora_B", Initializer.zeros(), high, parts ? part(high, 0, sizes) : null);
        places = places(sections, adapted, parts ? ranks.size() : 1);
        outputs = sections.stream().mapToLong(Section::size).sum() / (parts ? ranks.size() : 1);
        isWhole = sections.size() == 1;
    }

    private ParameterSplit part(Shape whole, int dimension, List<Long> sections) {
        return new ParameterSplit(whole, dimension, sections, ranks.rank(), ranks.size());
    }

    private static List<Place> places(List<Section> sections, List<Adapted> adapted, long parts) {
        List<Place> places = new ArrayList<>();
        long column = 0;
        long row = 0;
        long first = 0;
        for (Section section : sections) {
            long size = section.size() / parts;
            for (Adapted one : adapted) {
                if (one.section().equals(section)) {
                    LoraConfig own = one.config();
                    places.add(new Place(section.name(), column, row, size, own.rank(), first, own.factor()));
                    row += size;
                    first += own.rank();
                }
            }
            column += size;
        }
        return places;
    }

    /**
     * Declares the adapters that the plan asks for.
     *
     * @param inputs columns of x, on all ranks
     * @param sections of the output, in their order, with different names; tensor-parallel ranks divide the size of each where they split the
     *     outputs
     * @param plan the part of the product
     * @return null where it asks for none
     */
    public static @Nullable LowRankAdapter of(long inputs, List<Section> sections, Split split, ModelPlan plan) {
        Checks.atLeastOne("inputs", inputs);
        Checks.given("split", split, "plan", plan);
        List<Adapted> adapted = new ArrayList<>();
        for (Section section : Checks.givenAll("sections", sections)) {
            LoraConfig own = plan.adapter(section.name());
            if (own != null) {
                adapted.add(new Adapted(section, own));
            }
        }
        return adapted.isEmpty() ? null : new LowRankAdapter(inputs, sections, adapted, split, plan);
    }

    /** Returns A [n r, in], or this rank's columns of it. */
    public Parameter a() {
        return a;
    }

    /** Returns B [rows of the adapted sections, r], or this rank's rows of each. */
    public Parameter b() {
        return b;
    }

    /** Returns whether A or B is trained. */
    public boolean requiresGradient() {
        return !a.isFrozen() || !b.isFrozen();
    }

    /**
     * Enqueues {@code y += factor dropout(x) A^T B^T}.
     *
     * @param x [T, in]; where ranks that split the outputs are sequence-parallel, this rank's tokens
     * @param y [T, out], with what the product has written; where ranks split the inputs, the term of this rank
     * @param saved receives what backward reads, where the pass saves
     */
    public void addTo(Tensor x, Tensor y, Saved saved, Pass pass) {
        if (Checks.given("y", y).size(0) > 0) {
            add(inner(x, Checks.given("saved", saved), pass), y, pass);
        }
    }

    /**
     * Enqueues the same with what forward kept, in a backward that computes the product again.
     *
     * @param y as for {@link #addTo}
     * @param saved what forward kept
     */
    public void addAgain(Tensor y, Saved saved, Pass pass) {
        if (Checks.given("y", y).size(0) > 0) {
            add(Checks.given("saved", saved).low.get(), y, pass);
        }
    }

    private void add(Tensor low, Tensor y, Pass pass) {
        MatrixProduct.of(Transpose.NO, Transpose.YES, pass.productPlan())
                .product(low, whole(pass), y, Output.ADD, pass.stream());
    }

    /** Enqueues {@code low = factor dropout(x) A^T}. */
    private Tensor inner(Tensor x, Saved saved, Pass pass) {
        Scope memory = pass.isSaving() ? pass.kept() : pass.temporary();
        Tensor low = memory.tensor(x.dtype(), x.size(0), a.shape().size(0));
        boolean drops = pass.isTraining() && config.dropout() > 0;
        MatrixProduct.of(Transpose.NO, Transpose.YES, pass.productPlan())
                .product(drops ? dropped(x, memory, saved, pass) : x, a.weight(), low, Output.OVERWRITE, pass.stream());
        scale(low, pass.stream());
        if (gathersInput()) {
            Tensor all = memory.tensor(x.dtype(), x.size(0) * ranks.size(), low.size(1));
            ranks.gather(low, all, pass.stream());
            low = all;
        }
        if (pass.isSaving()) {
            saved.low.set(low);
        }
        return low;
    }

    private boolean gathersInput() {
        return split == Split.OUTPUTS && ranks.isSequenceParallel();
    }

    private boolean gathersGradient() {
        return split == Split.INPUTS && ranks.isSequenceParallel();
    }

    /** Enqueues the sum over ranks of their terms of {@code all}, of which each rank gets the rows of its tokens. */
    private Tensor ownOfSum(Tensor all, Pass pass) {
        Tensor own = pass.temporary().tensor(all.dtype(), all.size(0) / ranks.size(), all.size(1));
        ranks.reduceScatter(all, own, pass.stream());
        return own;
    }

    private Tensor dropped(Tensor x, Scope memory, Saved saved, Pass pass) {
        Tensor state = pass.draw(skipped(x));
        Tensor mask = memory.tensor(DType.BYTE, Dropout.maskBytes(x.count()));
        Tensor y = pass.temporary().like(x);
        y.zero(pass.stream());
        Dropout.dropoutAdd(x, y, y, mask, state, config.dropout(), pass.stream());
        if (pass.isSaving()) {
            saved.mask.set(mask);
        }
        return y;
    }

    /** Ranks that have parts of x draw for other values; those that have all of it draw alike. */
    private int skipped(Tensor x) {
        long before = split == Split.INPUTS || gathersInput() ? ranks.rank() * Math.ceilDiv(x.count(), 4L) : 0;
        return (int) (before & Integer.MAX_VALUE);
    }

    /** Enqueues {@code x = factor x} of all adapters, if they have one factor; else B is multiplied, section by section. */
    private void scale(Tensor x, Stream stream) {
        if (isEven) {
            scale(x, 0, stream);
        }
    }

    /** Enqueues {@code x = factor x} with the factor of a place. */
    private void scale(Tensor x, int place, Stream stream) {
        if (factors.isEmpty() || !factors.getFirst().isLive()) {
            List<Tensor> made = new ArrayList<>();
            for (Place one : isEven ? places.subList(0, 1) : places) {
                Tensor factor = a.owner().scope().tensor(DType.FLOAT32, 1);
                factor.set(stream, one.factor());
                made.add(factor);
            }
            factors = made;
        }
        positions.padded(QkvFormat.BSHD, x.size(0)); // the factor of one sequence, which has all rows
        DropPath.scaleSequencesAdd(x, null, x, factors.get(place), positions, stream);
    }

    /** Returns B [out, inner values] with the columns of each adapter in its own rows. */
    private Tensor whole(Pass pass) {
        Tensor stacked = b.weight();
        if (isWhole) {
            return stacked;
        }
        Scope temporary = pass.temporary();
        Stream stream = pass.stream();
        Tensor whole = temporary.tensor(stacked.dtype(), outputs, inner);
        whole.zero(stream);
        for (int i = 0; i < places.size(); i++) {
            Place place = places.get(i);
            Tensor own = temporary.view(stacked, place.row() * rank, place.size(), rank);
            Tensor rows = temporary.view(whole, place.column() * inner, place.size(), inner);
            Columns.copyColumns(own, 0, rows, place.inner(), place.rank(), stream);
            if (!isEven && place.size() > 0) {
                scale(rows, i, stream);
            }
        }
        return whole;
    }

    /**
     * Enqueues the gradients of A and B.
     *
     * @param x as forward read it
     * @param dy [T, out], the gradient of the output; where ranks that split the inputs are sequence-parallel, of this rank's tokens
     * @param saved what forward kept
     */
    public void parameterGradients(Tensor x, Tensor dy, Saved saved, Pass pass) {
        Scope temporary = pass.temporary();
        boolean isEmpty = Checks.given("dy", dy).size(0) == 0;
        Tensor low = isEmpty
                ? temporary.tensor(dy.dtype(), 0, a.shape().size(0))
                : Checks.given("saved", saved).low.get();
        if (!b.isFrozen()) {
            gradientOfB(dy, gathersGradient() && !isEmpty ? ownOfSum(low, pass) : low, pass);
        }
        Tensor gradient = isEmpty ? low : innerGradient(dy, pass);
        down = gradient;
        if (!a.isFrozen()) {
            MatrixProduct.of(Transpose.YES, Transpose.NO, pass.productPlan())
                    .product(gradient, read(x, saved, pass), a.gradient(), pass.nextGradient(a), pass.stream());
        }
    }

    /** Enqueues {@code factor dy B}, of the tokens of x. */
    private Tensor innerGradient(Tensor dy, Pass pass) {
        Scope temporary = pass.temporary();
        Tensor gradient = temporary.tensor(dy.dtype(), dy.size(0), a.shape().size(0));
        MatrixProduct.of(Transpose.NO, Transpose.NO, pass.productPlan())
                .product(dy, whole(pass), gradient, Output.OVERWRITE, pass.stream());
        scale(gradient, pass.stream());
        if (gathersInput()) {
            return ownOfSum(gradient, pass);
        }
        if (gathersGradient()) {
            Tensor all = temporary.tensor(dy.dtype(), dy.size(0) * ranks.size(), gradient.size(1));
            ranks.gather(gradient, all, pass.stream());
            return all;
        }
        return gradient;
    }

    /** Returns the input as the first product read it. */
    private Tensor read(Tensor x, Saved saved, Pass pass) {
        if (saved.mask.isEmpty() || x.size(0) == 0) {
            return x;
        }
        Tensor again = pass.temporary().like(x);
        Dropout.dropoutBackward(x, saved.mask.get(), again, config.dropout(), pass.stream());
        return again;
    }

    private void gradientOfB(Tensor dy, Tensor low, Pass pass) {
        MatrixProduct product = MatrixProduct.of(Transpose.YES, Transpose.NO, pass.productPlan());
        Output output = pass.nextGradient(b);
        if (isWhole) {
            product.product(dy, low, b.gradient(), output, pass.stream());
            return;
        }
        Scope temporary = pass.temporary();
        Tensor all = temporary.tensor(DType.FLOAT32, outputs, inner);
        product.product(dy, low, all, Output.OVERWRITE, pass.stream());
        for (int i = 0; i < places.size(); i++) {
            Place place = places.get(i);
            Tensor rows = temporary.view(all, place.column() * inner, place.size(), inner);
            Tensor own = temporary.view(b.gradient(), place.row() * rank, place.size(), rank);
            Tensor first = output == Output.OVERWRITE ? own : temporary.tensor(DType.FLOAT32, place.size(), rank);
            if (place.rank() < rank) {
                first.zero(pass.stream());
            }
            Columns.copyColumns(rows, place.inner(), first, 0, place.rank(), pass.stream());
            if (!isEven && place.size() > 0) {
                scale(first, i, pass.stream());
            }
            if (output == Output.ADD) {
                Elementwise.accumulate(first, own, Output.ADD, pass.stream());
            }
        }
    }

    /**
     * Enqueues the adapters' part of the gradient of x, after {@link #parameterGradients} of the same call.
     *
     * @param dx [T, in], with what the product's own gradient has written: this rank's term of the sum where ranks split the outputs; where they
     *     are sequence-parallel, too, the sum, of this rank's tokens
     * @param saved what forward kept
     */
    public void addInputGradient(Tensor dx, Saved saved, Pass pass) {
        if (Checks.given("dx", dx).size(0) == 0) {
            return;
        }
        Tensor gradient = Checks.given("parameterGradients", down);
        MatrixProduct product = MatrixProduct.of(Transpose.NO, Transpose.NO, pass.productPlan());
        if (Checks.given("saved", saved).mask.isEmpty()) {
            product.product(gradient, a.weight(), dx, Output.ADD, pass.stream());
            return;
        }
        Tensor term = pass.temporary().like(dx);
        product.product(gradient, a.weight(), term, Output.OVERWRITE, pass.stream());
        Dropout.dropoutBackward(term, saved.mask.get(), term, config.dropout(), pass.stream());
        Elementwise.add(term, dx, dx, pass.stream());
    }

    /** Returns which kernels run. */
    public String explain() {
        List<String> names =
                places.stream().map(Place::name).filter(name -> !name.isEmpty()).toList();
        List<String> sizes = places.stream()
                .map(place -> String.valueOf(place.rank()))
                .distinct()
                .toList();
        return "; adapters of rank " + String.join(" and ", sizes)
                + (names.isEmpty() ? "" : " of " + String.join(", ", names))
                + " by two products of ops_matrix_product"
                + (config.dropout() > 0 ? ", behind ops_dropout_add in training" : "");
    }

    @Override
    public String toString() {
        return "adapters " + a + " and " + b;
    }
}
