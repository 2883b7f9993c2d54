module example {
    requires dev.chagres;
}
