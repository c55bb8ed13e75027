exec yes "all work and no play"
