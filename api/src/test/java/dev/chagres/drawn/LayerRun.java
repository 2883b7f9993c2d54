package dev.chagres.drawn;

import dev.chagres.Tensor;
import dev.chagres.attention.RotaryConfig;
import dev.chagres.attention.RotaryEmbedding;
import dev.chagres.attention.Sequences;
import dev.chagres.conformance.Comparison;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.ResidualFactors;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.Bias;
import dev.chagres.layer.Linear;
import dev.chagres.layer.TransformerLayer;
import dev.chagres.layer.TransformerLayerConfig.BranchOrder;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
import dev.chagres.parameter.WeightStorage;
import dev.chagres.pass.Layer;
import dev.chagres.pass.Pass;
import dev.chagres.pass.Recomputed;
import dev.chagres.pass.SharedInput;
import dev.chagres.recipe.Quantizers;
import dev.chagres.witness.AttentionDropoutWitness;
import dev.chagres.witness.AttentionWitness;
import dev.chagres.witness.RotaryWitness;
import dev.chagres.witness.TransformerLayerWitness;
import dev.chagres.witness.Weights;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.commons.math3.linear.RealMatrix;
import org.jspecify.annotations.Nullable;

/** Computes a drawn layer, forward and backward, and compares all that it gives with double precision. */
final class LayerRun {
    static final String GROUP = "layer";
    private static final String OTHER_GROUP = "other";

    /** Step, and the number of its first micro-batch, of which dropout goes by. */
    private static final int STEP = 5;

    private static final int MICRO_BATCH = 2;

    private final DrawnLayer drawn;
    private final OpenDevice open;
    private final DrawnTolerances tolerances;
    private final TransformerLayer layer;
    private final Layer called;
    private final SharedInput memory = new SharedInput("memory");
    private final ModelPlan plan = new ModelPlan();
    private final List<ScoreChanges> changes = new ArrayList<>();
    /** Gradients by name, of all micro-batches. */
    private final Map<String, RealMatrix> expected = new LinkedHashMap<>();
    /** Likewise, what their errors are compared with at least. */
    private final Map<String, Double> sizes = new LinkedHashMap<>();

    private LayerRun(DrawnLayer drawn, OpenDevice open) {
        this.drawn = drawn;
        this.open = open;
        tolerances = new DrawnTolerances(drawn);
        ModelPlan own = plan.group(GROUP);
        layer = drawn.decodes()
                ? new TransformerLayer(drawn.config(), memory, own)
                : new TransformerLayer(drawn.config(), own);
        called = drawn.calls().recomputes() ? new Recomputed(layer) : layer;
        if (drawn.recipe() != null && !drawn.casts()) {
            new Linear(16, 16, Bias.ABSENT, Initializer.zeros(), plan.group(OTHER_GROUP));
        }
    }

    /** Compares; returns what the layer says that it computes by. */
    static String compare(DrawnLayer drawn, OpenDevice open) {
        return new LayerRun(drawn, open).compare();
    }

    private String compare() {
        DrawnRecipe recipe = drawn.recipe();
        WeightStorage storage = recipe == null ? WeightStorage.MODEL_TYPE : recipe.storage();
        try (Parameters parameters = Parameters.allocate(open.device(), plan, drawn.dtype(), 1, storage)) {
            Weights weights = open.draw(parameters);
            TransformerLayerWitness witness = new TransformerLayerWitness(
                    drawn.config(),
                    weights,
                    GROUP + ".",
                    drawn.tokens().rows(),
                    drawn.keys().rows(),
                    rotate());
            rotateCrossAttention(witness);
            Sequences sequences = sequences(witness);
            List<MicroBatch> batches = new ArrayList<>();
            for (int i = 0; i < drawn.calls().microBatches(); i++) {
                batches.add(MicroBatch.draw(i, drawn, open));
            }
            try (Quantizers quantizers = recipe == null ? null : quantizers(recipe, parameters)) {
                if (quantizers != null) {
                    open.pass().autocast(quantizers);
                    batches.forEach(batch -> call(batch, sequences)); // delayed scaling learns its scales
                    parameters.completeGradients();
                    parameters.nextStep();
                }
                batches.forEach(batch -> compare(batch, sequences, weights, witness));
                assertGradients(parameters);
                return layer.explain(open.tensor(drawn.dtype(), batches.getFirst().x), open.pass());
            }
        }
    }

    private static Quantizers quantizers(DrawnRecipe recipe, Parameters parameters) {
        return recipe.casts()
                ? Quantizers.allocate(parameters, recipe.recipe())
                : Quantizers.allocate(parameters, recipe.recipe(), Set.of(GROUP));
    }

    /** What one micro-batch reads. */
    private record MicroBatch(int number, RealMatrix x, RealMatrix dy, RealMatrix memory) {
        static MicroBatch draw(int number, DrawnLayer drawn, OpenDevice open) {
            return new MicroBatch(
                    number,
                    open.normal(drawn.dtype(), drawn.tokens().tokens(), drawn.hidden(), 1),
                    open.normal(drawn.dtype(), drawn.tokens().tokens(), drawn.hidden(), 1),
                    open.normal(drawn.dtype(), drawn.keys().tokens(), DrawnLayer.MEMORY, 1));
        }
    }

    private record Results(Tensor y, Tensor dx, Tensor dmemory) {}

    private Pass begin(MicroBatch batch, Sequences sequences) {
        Pass pass = open.pass().begin(sequences);
        pass.seed(drawn.seed(), STEP, MICRO_BATCH + batch.number);
        return pass;
    }

    private Results call(MicroBatch batch, Sequences sequences) {
        Pass pass = begin(batch, sequences);
        memory.forward(open.tensor(drawn.dtype(), batch.memory), pass);
        changes.forEach(change -> change.forward(pass));
        Tensor y = called.forward(open.tensor(drawn.dtype(), batch.x), pass);
        Tensor dx = called.backward(open.tensor(drawn.dtype(), batch.dy), pass);
        changes.reversed().forEach(change -> change.backward(pass));
        return new Results(y, dx, memory.backward(pass));
    }

    private void compare(MicroBatch batch, Sequences sequences, Weights weights, TransformerLayerWitness witness) {
        keep(batch, sequences, witness);
        Results results = call(batch, sequences);
        RealMatrix y = drawn.decodes() ? witness.forward(batch.x, batch.memory) : witness.forward(batch.x);
        open.assertClose("y", y, results.y, tolerances.output());
        open.assertClose("dx", witness.backward(batch.dy), results.dx, tolerances.gradient());
        if (drawn.decodes()) {
            RealMatrix gradient = witness.crossAttention().memoryGradient();
            open.assertClose("gradient of the memory", gradient, results.dmemory, tolerances.gradient());
        }
        changes.forEach(change -> change.assertGradient(tolerances.gradient()));
        for (String name : weights.names()) {
            if (name.startsWith(GROUP)) {
                expected.merge(name, weights.gradient(name), RealMatrix::add);
                double size = tolerances.summands(name.substring(GROUP.length() + 1), witness);
                sizes.merge(name, size, Math::hypot);
            }
        }
    }

    /** Tells layer and witness what is done with scores, and lets the sequences say the rest. */
    private Sequences sequences(TransformerLayerWitness witness) {
        Sequences sequences = drawn.tokens().sequences(open.scope());
        if (!drawn.starts().isEmpty()) {
            sequences = sequences.startingAt(
                    open.scope(),
                    drawn.starts().stream().mapToInt(Integer::intValue).toArray());
        }
        AttentionConfig own = drawn.config().attention();
        ScoreChanges changed = new ScoreChanges(
                ScoreChanges.Attention.of(own, layer.attention()),
                drawn.scores(),
                witness.attention().attention().scores(),
                drawn.dtype(),
                open);
        changes.add(changed);
        sequences = changed.change(sequences);
        if (!drawn.decodes()) {
            return sequences;
        }
        ScoreChanges crossChanged = new ScoreChanges(
                ScoreChanges.Attention.of(drawn.crossAttention(), layer.crossAttention()),
                drawn.crossScores(),
                witness.crossAttention().attention().scores(),
                drawn.dtype(),
                open);
        changes.add(crossChanged);
        return crossChanged.change(sequences.withKeys(drawn.keys().sequences(open.scope())));
    }

    private @Nullable RotaryWitness rotate() {
        RotaryConfig rotary = drawn.rotary();
        if (rotary == null) {
            return null;
        }
        layer.rotate(RotaryEmbedding.of(open.scope(), 128, rotary));
        return Rotations.witness(rotary, drawn.tokens(), drawn.starts());
    }

    /** Rotates cross-attention as self-attention, where its heads may have another size. */
    private void rotateCrossAttention(TransformerLayerWitness witness) {
        RotaryConfig rotary = drawn.rotary();
        if (rotary != null && drawn.decodes()) {
            RotaryConfig own = RotaryConfig.of(drawn.crossAttention().headDim())
                    .withPairing(rotary.pairing())
                    .withBase(rotary.base());
            layer.crossAttention().rotate(RotaryEmbedding.of(open.scope(), 128, own));
            witness.crossAttention()
                    .rotate(
                            Rotations.witness(own, drawn.tokens(), drawn.starts()),
                            Rotations.witness(own, drawn.keys(), List.of()));
        }
    }

    /** Gives the witness what the layer will leave out, in the order in which it draws. */
    private void keep(MicroBatch batch, Sequences sequences, TransformerLayerWitness witness) {
        Pass pass = begin(batch, sequences);
        List<RealMatrix> factors = new ArrayList<>();
        boolean parallel = drawn.config().branchOrder() == BranchOrder.PARALLEL;
        drop(pass, drawn.config().attention(), witness.attention().attention());
        factors.add(factors(pass));
        if (drawn.decodes()) {
            drop(pass, drawn.crossAttention(), witness.crossAttention().attention());
            factors.add(factors(pass));
        }
        if (!parallel) {
            factors.add(factors(pass));
        }
        witness.keep(factors.toArray(RealMatrix[]::new));
    }

    private RealMatrix factors(Pass pass) {
        return ResidualFactors.draw(
                pass,
                drawn.tokens(),
                drawn.hidden(),
                drawn.config().hiddenDropout(),
                drawn.config().dropPath());
    }

    private void drop(Pass pass, AttentionConfig config, AttentionWitness witness) {
        if (!config.dropout().isNone()) {
            long[] state = pass.draw().toLongs(open.stream());
            witness.keep(
                    new AttentionDropoutWitness(config.dropout().probability(), config.heads(), state[0], state[1]));
        }
    }

    private void assertGradients(Parameters parameters) {
        List<Parameter> own = parameters.all().stream()
                .filter(parameter -> expected.containsKey(parameter.name()))
                .toList();
        for (Parameter parameter : own) {
            open.assertClose(
                    "gradient of " + parameter.name(),
                    Comparison.entries(expected.get(parameter.name())),
                    open.read(parameter.gradient()),
                    sizes.get(parameter.name()),
                    tolerances.gradient());
        }
        if (drawn.casts()) {
            assertTogether(own);
        }
    }

    /** Compares all gradients of the layer as one vector. */
    private void assertTogether(List<Parameter> parameters) {
        int count = parameters.stream()
                .mapToInt(p -> Math.toIntExact(p.shape().count()))
                .sum();
        double[] wanted = new double[count];
        float[] actual = new float[count];
        int next = 0;
        for (Parameter parameter : parameters) {
            double[] entries = Comparison.entries(expected.get(parameter.name()));
            System.arraycopy(entries, 0, wanted, next, entries.length);
            System.arraycopy(open.read(parameter.gradient()), 0, actual, next, entries.length);
            next += entries.length;
        }
        open.assertClose("all gradients", wanted, actual, 0, tolerances.allGradients());
    }
}
