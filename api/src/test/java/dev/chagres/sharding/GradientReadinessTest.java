package dev.chagres.sharding;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.Sequences;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.TransformerLayer;
import dev.chagres.layer.TransformerLayerConfig;
import dev.chagres.parameter.FlatGroup;
import dev.chagres.parameter.GradientOwner;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.ParameterHooks;
import dev.chagres.parameter.Parameters;
import dev.chagres.parameter.ShardRanks;
import dev.chagres.pass.Layer;
import dev.chagres.pass.Pass;
import dev.chagres.pass.PassObserver;
import java.util.ArrayList;
import java.util.List;
import java.util.function.Function;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** When backward has completed the gradients of a group: strategies reduce them from then on, beside the rest of backward. */
@Tag("L0")
@Tag("L2")
class GradientReadinessTest {
    private static final int HIDDEN = 32;
    private static final int TOKENS = 8;

    /** Records gradients that are written, groups that are complete, and layers whose backward call has ended. */
    private static final class Events implements ParameterHooks, PassObserver {
        private final List<String> list = new ArrayList<>();
        private final GradientReadiness progress;

        Events(List<FlatGroup> groups) {
            progress = new GradientReadiness(
                    "events",
                    groups.size(),
                    group -> list.add("complete " + groups.get(group).name()),
                    (_, _) -> {});
        }

        @Override
        public void reading(Parameter parameter, GradientOwner writer) {
            progress.uses(parameter.group(), WeightForm.UNSHARDED, writer);
        }

        @Override
        public void writing(Parameter parameter) {
            list.add("write " + parameter.name());
        }

        @Override
        public void stepping() {}

        @Override
        public void rewritten() {}

        @Override
        public void sumOfShards(Tensor values) {}

        @Override
        public @Nullable ShardRanks shardRanks() {
            return null;
        }

        @Override
        public void loaded() {}

        @Override
        public void entering(Layer layer, Direction direction, Pass pass) {}

        @Override
        public void left(Layer layer, Direction direction, Pass pass, long keptBytes) {
            if (direction == Direction.BACKWARD) {
                list.add("left " + layer.name());
            }
        }

        int place(String event) {
            int place = list.indexOf(event);
            assertTrue(place >= 0, () -> "expected " + event + " in " + list);
            return place;
        }

        void assertOrder(String first, String second) {
            assertTrue(place(first) < place(second), () -> "expected " + first + " before " + second + " in " + list);
        }
    }

    /** Computes a layer forward and backward. */
    private static Events events(Function<Parameter, String> kind) {
        ModelPlan whole = new ModelPlan();
        TransformerLayerConfig config =
                TransformerLayerConfig.encoder(HIDDEN, AttentionConfig.of(2, 16, AttentionMask.none()));
        TransformerLayer layer = new TransformerLayer(config, whole.group("layer"));
        ModelPlan plan = whole.regrouped(kind);
        try (Device device = Device.open();
                Parameters parameters = Parameters.allocate(device, plan, DType.FLOAT32, 1);
                Scope scope = device.openScope();
                Pass pass = Pass.training(device)) {
            Events events = new Events(parameters.access().groups());
            parameters.access().observe(events);
            events.progress.follow(pass);
            pass.observe(events);
            pass.begin(Sequences.packed(scope, TOKENS));
            Tensor x = scope.tensor(DType.FLOAT32, TOKENS, HIDDEN);
            x.zero(device.stream());
            layer.backward(layer.forward(x, pass), pass);
            assertEquals(
                    parameters.access().groups().size(),
                    events.list.stream()
                            .filter(event -> event.startsWith("complete"))
                            .count(),
                    events.list::toString);
            return events;
        }
    }

    private static boolean isOfMlp(Parameter parameter) {
        return parameter.name().contains(".mlp.");
    }

    private static boolean isOfNorm(Parameter parameter) {
        return parameter.name().contains("norm");
    }

    /** The residual sum adds the bias of the MLP's last product, but the MLP writes its gradient. */
    @Test
    void theProductsOfAnMlpAreCompleteBeforeAttention() {
        Events events = events(parameter -> isOfMlp(parameter) && !isOfNorm(parameter) ? "mlp" : "attention");
        events.assertOrder("complete layer mlp", "write layer.attention.projection.weight");
    }

    /** The gradient of a branch's input is still to come. */
    @Test
    void aBranchIsCompleteWithTheGradientsOfItsFirstProduct() {
        Events events = events(parameter -> isOfNorm(parameter) ? "norm" : isOfMlp(parameter) ? "mlp" : "attention");
        events.assertOrder("write layer.mlp.fc1.weight", "complete layer mlp");
        events.assertOrder("complete layer mlp", "left layer.mlp");
        events.assertOrder("complete layer mlp", "write layer.attention.projection.weight");
        events.assertOrder("write layer.attention.qkv.linear.weight", "complete layer attention");
        events.assertOrder("complete layer attention", "left layer.attention");
        events.assertOrder("complete layer attention", "complete layer norm");
    }

    /** A norm's gradients come last. */
    @Test
    void aGroupWithANormIsCompleteAfterIt() {
        Events events = events(_ -> "all");
        String last = "write layer.attention.qkv.norm.weight";
        events.assertOrder("write layer.attention.qkv.linear.weight", last);
        events.assertOrder(last, "complete layer");
    }
}
