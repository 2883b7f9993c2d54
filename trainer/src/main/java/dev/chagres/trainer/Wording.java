package dev.chagres.trainer;

/** How failures call what a program gives: by the options of a command, or by what {@link Trainer} calls them. */
record Wording(String learningRate, String bf16, String save, String resume, String ranks) {
    static final Wording OPTIONS =
            new Wording("--learning-rate", "take --recipe bf16", "--save", "--resume", "--ranks");
    static final Wording CALLS = new Wording("the learning rate", "take DType.BFLOAT16", "save", "resume", "ranks");
}
