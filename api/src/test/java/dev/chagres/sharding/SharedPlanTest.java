package dev.chagres.sharding;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.DevicesNeeded;
import dev.chagres.Tensor;
import dev.chagres.launch.Rank;
import dev.chagres.launch.Ranks;
import dev.chagres.layer.Linear;
import dev.chagres.nccl.RankFailedException;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Pass;
import java.util.List;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** A model that was made outside of the body of {@link Ranks#run}: the ranks are told, whichever comes first. */
@Tag("L0")
@Tag("L2")
@Timeout(60)
class SharedPlanTest {
    private static final long SEED = 3;

    /** What a rank does with the plan, and with the layer that was declared in it. */
    private interface Use {
        void run(Rank rank, ModelPlan plan, Linear layer);
    }

    private static void assertRefused(Use use) {
        DevicesNeeded.assume(2);
        for (int i = 0; i < 8; i++) { // which rank comes first is a matter of chance
            ModelPlan plan = new ModelPlan();
            Linear layer = new Linear(8, 8, Initializer.normal(0.1f), plan);
            RankFailedException failure = assertThrows(
                    RankFailedException.class, () -> Ranks.local(2).each(rank -> use.run(rank, plan, layer)));
            assertInstanceOf(IllegalStateException.class, failure.getCause());
            int later = failure.ranks().getFirst();
            int first = 1 - later;
            assertEquals(
                    "plan: expected one that no other rank has allocated, got that of device " + first
                            + " and thread \"rank-" + first
                            + "\"; make the model inside the body of Ranks.run, so that each rank has its own",
                    failure.getCause().getMessage());
        }
    }

    private static void forward(Rank rank, Linear layer) {
        try (Pass pass = Pass.evaluation(rank.device())) {
            pass.begin();
            Tensor x = pass.scope().tensor(DType.FLOAT32, 4, 8);
            x.zero(rank.device().stream());
            layer.forward(x, pass);
        }
    }

    @Test
    void parametersOfOneModelAreAllocatedByOneRank() {
        assertRefused((rank, plan, layer) -> {
            try (Parameters _ = Parameters.allocate(rank.device(), plan, DType.FLOAT32, SEED)) {
                forward(rank, layer);
            }
        });
    }

    @Test
    void replicasNeedAModelEach() {
        assertRefused((rank, plan, layer) -> {
            try (Parameters parameters = Parameters.allocate(rank.device(), plan, DType.FLOAT32, SEED);
                    DataParallel _ = DataParallel.of(parameters, rank.communicator())) {
                forward(rank, layer);
            }
        });
    }

    @Test
    void shardsNeedAModelEach() {
        assertRefused((rank, plan, layer) -> {
            try (FullySharded _ =
                    FullySharded.allocate(plan, DType.FLOAT32, SEED, ZeroStage.THREE, rank.communicator())) {
                forward(rank, layer);
            }
        });
    }

    @Test
    void partsOfOneModelNeedAModelEach() {
        assertRefused((rank, plan, _) -> {
            ModelPlan part = plan.part(_ -> true, _ -> "all");
            try (Parameters _ = Parameters.allocate(rank.device(), part, DType.FLOAT32, SEED)) {
                rank.device().synchronize();
            }
        });
    }

    @Test
    void ranksThatMakeTheirModelsAreNotRefused() {
        DevicesNeeded.assume(2);
        List<Long> counts = Ranks.local(2).run(rank -> {
            ModelPlan plan = new ModelPlan();
            plan.declare("x", Initializer.ones(), 4);
            try (Parameters parameters = Parameters.allocate(rank.device(), plan, DType.FLOAT32, SEED)) {
                return parameters.count();
            }
        });
        assertEquals(List.of(4L, 4L), counts);
    }

    @Test
    void runsOneAfterAnotherMayUseOneModel() {
        ModelPlan plan = new ModelPlan();
        Linear layer = new Linear(8, 8, Initializer.normal(0.1f), plan);
        for (int i = 0; i < 2; i++) {
            Ranks.local(1).each(rank -> {
                for (int j = 0; j < 2; j++) {
                    try (Parameters parameters = Parameters.allocate(rank.device(), plan, DType.FLOAT32, SEED)) {
                        forward(rank, layer);
                        assertTrue(parameters.isOpen());
                    }
                }
            });
        }
    }

    @Test
    void theSameRankIsToldThatItsParametersAreOpen() {
        Ranks.local(1).each(rank -> {
            ModelPlan plan = new ModelPlan();
            plan.declare("x", Initializer.ones(), 4);
            try (Parameters _ = Parameters.allocate(rank.device(), plan, DType.FLOAT32, SEED)) {
                assertThrown(
                        IllegalStateException.class,
                        "parameter x has memory already: close its Parameters first",
                        () -> Parameters.allocate(rank.device(), plan, DType.FLOAT32, SEED));
            }
        });
    }
}
