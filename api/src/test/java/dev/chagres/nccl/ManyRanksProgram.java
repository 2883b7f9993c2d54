package dev.chagres.nccl;

import java.util.List;

/** What a JVM with sixteen devices runs in {@link ManyRanksTest}. */
final class ManyRanksProgram {
    static final List<Integer> RANKS = List.of(9, 12, 16);

    private ManyRanksProgram() {}

    public static void main(String[] arguments) {
        CollectivesConformance collectives = new CollectivesConformance();
        for (int ranks : RANKS) {
            collectives.allReduce(ranks);
            collectives.allGather(ranks);
            collectives.reduceScatter(ranks);
            collectives.allToAll(ranks);
            System.out.println(ranks);
        }
    }
}
