exec bash "$0"
